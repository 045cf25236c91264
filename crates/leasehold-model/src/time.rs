//! Time in the model: true time passes in ticks, and each client's clock has the largest allowed error.
//!
//! A ttl is two ticks, and clock rates are wrong by 25 % instead of 0.5 %. So a ttl takes few steps, and the allowances
//! for clock rates are whole ticks. The state contains only ages, and an age stops growing at the value beyond which it
//! no longer matters. So there is no time limit: any time may pass between two steps.

/// An age in ticks of true time. Ages beyond the value that still matters are equal.
pub type Age = u8;

/// The units of an exact clock in one tick of true time.
pub const TICK: i32 = 4;
/// The ttl of every lease, in units.
pub const TTL: i32 = 2 * TICK;
/// The largest error of the rate of a local clock, in each direction.
pub const RATE_ERROR: f64 = 0.25;
/// The slack of both sides in addition to the rates. It is zero, because events in the model take no time.
pub const SLACK: f64 = 0.0;

/// The rate of a client's clock. Rates in between are not worse: belief ends latest on a slow clock, and a takeover
/// happens earliest on a fast clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rate {
    /// The lower bound.
    #[default]
    Slow,
    /// The upper bound.
    Fast,
}

impl Rate {
    /// Returns the time that this clock shows after `age`.
    pub fn elapsed(self, age: Age) -> i32 {
        let per_tick = match self {
            Rate::Slow => TICK - 1,
            Rate::Fast => TICK + 1,
        };
        i32::from(age) * per_tick
    }

    /// Returns the first age at which `span` has passed on this clock.
    pub fn until(self, span: i32) -> Age {
        (0..Age::MAX).find(|age| self.elapsed(*age) >= span).unwrap_or(Age::MAX)
    }
}

/// Returns how long a holder may believe: ttl (1 - rho) - delta.
pub fn holder_span(ttl: f64, rate_error: f64, slack: f64) -> f64 {
    ttl * (1.0 - rate_error) - slack
}

/// Returns how long a contender must see no sign of life: ttl (1 + rho) + delta.
pub fn contender_span(ttl: f64, rate_error: f64, slack: f64) -> f64 {
    ttl * (1.0 + rate_error) + slack
}
