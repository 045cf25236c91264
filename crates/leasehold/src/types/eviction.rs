//! [`Eviction`]: who evicted a holder, and why.

use serde::{Deserialize, Serialize};

use super::name::is_unprintable;

/// The maximum length of a name and of a reason, in characters.
pub(super) const MAX_TEXT: usize = 200;

/// Who evicted a holder, and why. For people, never for decisions.
///
/// ```
/// use leasehold::{Eviction, Locker};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// let why = Eviction::new("alice", "the machine is gone");
/// locker.evict_for(guard.name(), guard.token()?, &why).await?;
/// assert_eq!(locker.inspect(guard.name()).await?.history[0].evicted, Some(why));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "_schema",
    derive(utoipa::ToSchema),
    schema(description = "Why an operator evicted a holder. Text \
    from others: show it as text, never as markup.")
)]
#[non_exhaustive]
pub struct Eviction {
    /// Who decided the eviction.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub by: String,
    /// The reason.
    #[serde(default)]
    #[cfg_attr(feature = "_schema", schema(required))]
    pub reason: String,
}

impl Eviction {
    /// Creates an eviction by `by` for `reason`. Each text is truncated to 200 characters, and control and invisible
    /// characters are replaced with spaces.
    pub fn new(by: &str, reason: &str) -> Self {
        let kept = |text: &str| {
            text.chars().map(|c| if is_unprintable(c) { ' ' } else { c }).take(MAX_TEXT).collect()
        };
        Self { by: kept(by), reason: kept(reason) }
    }
}
