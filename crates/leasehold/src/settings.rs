//! The settings of a lock, once more for what is made of locks.

/// The settings of a lock, for what is made of several locks and keeps their settings in its field `lock`.
macro_rules! settings {
    () => {
        /// The leases' time to live, as [`Lock::ttl`](crate::Lock::ttl).
        #[must_use]
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.lock = self.lock.ttl(ttl);
            self
        }

        /// What an acquisition is for, as [`Lock::note`](crate::Lock::note).
        #[must_use]
        pub fn note(mut self, note: impl Into<String>) -> Self {
            self.lock = self.lock.note(note);
            self
        }

        /// The holder's name that others are shown, as [`Lock::owner`](crate::Lock::owner).
        #[must_use]
        pub fn owner(mut self, name: impl Into<String>) -> Self {
            self.lock = self.lock.owner(name);
            self
        }

        /// How much longer others wait after a lapse, as [`Lock::lock_delay`](crate::Lock::lock_delay).
        #[must_use]
        pub fn lock_delay(mut self, delay: Duration) -> Self {
            self.lock = self.lock.lock_delay(delay);
            self
        }

        /// How long to put up with a store that does not answer, as [`Lock::store_timeout`](crate::Lock::store_timeout).
        #[must_use]
        pub fn store_timeout(mut self, timeout: Duration) -> Self {
            self.lock = self.lock.store_timeout(timeout);
            self
        }

        /// For a guard that is to be handed on as a [`Ticket`](crate::Ticket), as
        /// [`Lock::for_ticket`](crate::Lock::for_ticket).
        #[must_use]
        pub fn for_ticket(mut self) -> Self {
            self.lock = self.lock.for_ticket();
            self
        }

        /// Calls `tell` whenever an acquisition that waits learns of one of those who are in its way, as
        /// [`Lock::on_wait`](crate::Lock::on_wait).
        #[must_use]
        pub fn on_wait(mut self, tell: impl Fn(&Held) + Send + Sync + 'static) -> Self {
            self.lock = self.lock.on_wait(tell);
            self
        }
    };
}
pub(crate) use settings;
