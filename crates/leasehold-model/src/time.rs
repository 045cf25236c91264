//! Time in the model: true time passes in ticks, and each client's clock is as wrong as the bound allows.
//!
//! A ttl is two ticks, and clocks are off by a quarter instead of half a percent. So a ttl takes few steps, and the
//! allowances for clock rates are whole ticks. The state contains only ages, which stop growing once nothing depends
//! on them. So there is no horizon: any time may pass at any point.

/// How many ticks ago. Ages that make no difference any more are equal.
pub type Age = u8;

/// Units of a local clock in one tick of true time.
pub const TICK: i32 = 4;
/// The ttl of every lease, in units.
pub const TTL: i32 = 2 * TICK;
/// How far the rate of a local clock may be from true time, in each direction.
pub const RATE_ERROR: f64 = 0.25;
/// The slack of both sides besides the rates. Zero, because events in the model take no time.
pub const SLACK: f64 = 0.0;

/// How wrong a client's clock is. Rates in between are no worse: belief ends latest on a slow clock, and a takeover
/// comes earliest on a fast one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Rate {
    /// At the lower bound.
    #[default]
    Slow,
    /// At the upper bound.
    Fast,
}

impl Rate {
    /// What this clock shows after `age`.
    pub fn elapsed(self, age: Age) -> i32 {
        let per_tick = match self {
            Rate::Slow => TICK - 1,
            Rate::Fast => TICK + 1,
        };
        i32::from(age) * per_tick
    }

    /// The first age at which `span` has passed on this clock.
    pub fn until(self, span: i32) -> Age {
        (0..Age::MAX).find(|age| self.elapsed(*age) >= span).unwrap_or(Age::MAX)
    }
}

/// How long a holder may believe: ttl (1 - rho) - delta.
pub fn holder_span(ttl: f64, rate_error: f64, slack: f64) -> f64 {
    ttl * (1.0 - rate_error) - slack
}

/// How long a contender has to see no sign of life: ttl (1 + rho) + delta.
pub fn contender_span(ttl: f64, rate_error: f64, slack: f64) -> f64 {
    ttl * (1.0 + rate_error) + slack
}
