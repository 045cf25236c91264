//! Time in the model: true time goes in ticks, and each client's clock is as wrong as it may be.
//!
//! A ttl is two ticks, and clocks are off by a quarter instead of half a percent: what takes a ttl to happen then takes few
//! steps, and the distances that clocks make necessary stay visible at whole ticks. No moment is kept, only ages, which
//! stop to grow once nothing depends on them: so there is no horizon, and time may pass at any point for any time.

/// So many ticks ago. What is older than matters is as old as that.
pub type Age = u8;

/// Units of a local clock in one tick of true time.
pub const TICK: i32 = 4;
/// The ttl of every lease, in units.
pub const TTL: i32 = 2 * TICK;
/// How far the rate of a local clock is from true time, per side.
pub const RATE_ERROR: f64 = 0.25;
/// The slack of both sides beside the rates. None: events in the model take no time.
pub const SLACK: f64 = 0.0;

/// How wrong a client's clock is. In between is no worse: belief ends latest on a slow clock, and a takeover comes
/// earliest on a fast one.
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
