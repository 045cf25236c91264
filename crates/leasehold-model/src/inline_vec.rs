//! A short list that is stored inline, because states are copied and hashed millions of times.

/// A list of at most `N` items. Unused slots hold the default value, so that lists with the same items compare and hash
/// equal.
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
    /// Returns the items, in order.
    pub fn all(&self) -> &[T] {
        &self.items[..usize::from(self.len)]
    }

    /// Returns the items, mutably.
    pub fn all_mut(&mut self) -> &mut [T] {
        &mut self.items[..usize::from(self.len)]
    }

    /// Appends an item. Panics if there is no free slot, which means that the scope is too large.
    pub fn push(&mut self, item: T) {
        assert!(usize::from(self.len) < N, "the scope needs more than {N} places here");
        self.items[usize::from(self.len)] = item;
        self.len += 1;
    }

    /// Removes the last item.
    pub fn pop(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.items[usize::from(self.len)] = T::default();
        }
    }

    /// Keeps only the items for which `keep` returns `true`.
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
