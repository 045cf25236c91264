//! Setters for the settings of a lock, for types that are built from locks.

/// Defines setters for the settings of a lock, for a type with a field `lock`.
macro_rules! settings {
    () => {
        /// Sets the leases' time to live, like [`Lock::ttl`](crate::Lock::ttl).
        #[must_use]
        pub fn ttl(mut self, ttl: Duration) -> Self {
            self.lock = self.lock.ttl(ttl);
            self
        }

        /// Describes the purpose of the acquisitions, like [`Lock::note`](crate::Lock::note).
        #[must_use]
        pub fn note(mut self, note: impl Into<String>) -> Self {
            self.lock = self.lock.note(note);
            self
        }

        /// Sets the holder's name that others see, like [`Lock::owner`](crate::Lock::owner).
        #[must_use]
        pub fn owner(mut self, name: impl Into<String>) -> Self {
            self.lock = self.lock.owner(name);
            self
        }

        /// Sets how much longer others wait after a lease has lapsed, like
        /// [`Lock::lock_delay`](crate::Lock::lock_delay).
        #[must_use]
        pub fn lock_delay(mut self, delay: Duration) -> Self {
            self.lock = self.lock.lock_delay(delay);
            self
        }

        /// Limits how long a lock is held, like [`Lock::max_hold`](crate::Lock::max_hold).
        #[must_use]
        pub fn max_hold(mut self, limit: Duration) -> Self {
            self.lock = self.lock.max_hold(limit);
            self
        }

        /// Sets how long to keep trying if the store does not respond, like
        /// [`Lock::store_timeout`](crate::Lock::store_timeout).
        #[must_use]
        pub fn store_timeout(mut self, timeout: Duration) -> Self {
            self.lock = self.lock.store_timeout(timeout);
            self
        }

        /// Prepares the guard to be handed on as a [`Ticket`](crate::Ticket), like
        /// [`Lock::for_ticket`](crate::Lock::for_ticket).
        #[must_use]
        pub fn for_ticket(mut self) -> Self {
            self.lock = self.lock.for_ticket();
            self
        }

        /// Calls `callback` each time a waiting acquisition learns of a holder that it waits for, like
        /// [`Lock::on_wait`](crate::Lock::on_wait).
        #[must_use]
        pub fn on_wait(mut self, callback: impl Fn(&HolderInfo) + Send + Sync + 'static) -> Self {
            self.lock = self.lock.on_wait(callback);
            self
        }
    };
}
pub(crate) use settings;
