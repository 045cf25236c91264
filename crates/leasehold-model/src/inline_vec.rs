//! A short list stored inline: states are copied and hashed millions of times.

/// At most `N` items. Unused places hold the default value, so that equal lists are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Few<T, const N: usize> {
    items: [T; N],
    len: u8,
}

impl<T: Copy + Default, const N: usize> Default for Few<T, N> {
    fn default() -> Self {
        Self { items: [T::default(); N], len: 0 }
    }
}

impl<T: Copy + Default, const N: usize> Few<T, N> {
    /// The items, in order.
    pub fn all(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }

    /// The items, mutable.
    pub fn all_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }

    /// Adds an item at the end. Panics if there is no place left: the scope is then too large.
    pub fn push(&mut self, item: T) {
        assert!(usize::from(self.len) < N, "the scope needs more than {N} places here");
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    /// Removes the latest item.
    pub fn pop(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.items[usize::from(self.len)] = T::default();
        }
    }

    /// Keeps the items for which `keep` holds.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        let mut kept = Self::default();
        for item in self.all() {
            if keep(item) {
                kept.push(*item);
            }
        }
        *self = kept;
    }
}

impl<T: std::fmt::Debug + Copy + Default, const N: usize> std::fmt::Debug for Few<T, N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.all()).finish()
    }
}
