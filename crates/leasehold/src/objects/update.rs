//! Optimistic updates: read, change, write if nothing has changed meanwhile, else again.

use bytes::Bytes;

use super::cas_loop::{Change, Changed, Look, trust};
use crate::error::Error;
use crate::register::Register;

/// What came of an update.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// Whether something was written. Nothing is when the closure gave nothing, or the content that was there.
    pub written: bool,
    /// What the object has become, or is; `None` when there is none.
    pub content: Option<Bytes>,
    /// How often the closure ran.
    pub attempts: u32,
}

impl From<Changed> for Updated {
    fn from(changed: Changed) -> Self {
        let Changed { content, written, attempts } = changed;
        Self { written, content, attempts }
    }
}

/// Changes the object `key` to what `make` makes of its content; creates it when there is none.
///
/// `make` is given the content, or `None` when there is no object, and gives the new one, or `None` to leave everything as
/// it is. Nobody else's write is lost: when another wrote meanwhile, `make` runs again on what is there now, after a pause
/// with full jitter. So it must not have effects of its own. (An async closure that takes what it uses along with `move` does not
/// compile here: let it borrow.) At most 256 times, and within a minute;
/// [`Object`](crate::Object) has settings for both, and checks an unknown store once instead of before each update.
///
/// A write whose answer was lost is looked up and never applied twice: its nonce is in the object's metadata, with those of
/// the latest writes. The object's own metadata stays as it is. `docs/updates.md` has the rules and the limits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{env::Env, stores::memory::MemoryRegister};
///
/// let register = MemoryRegister::new(Env::system());
/// for _ in 0..3 {
///     leasehold::update(&register, "hits", async |content| {
///         let hits: u64 = content.map_or(0, |text| String::from_utf8_lossy(&text).parse().unwrap_or(0));
///         Ok::<_, leasehold::Error>(Some(format!("{}", hits + 1).into()))
///     })
///     .await?;
/// }
/// # use leasehold::Register;
/// assert_eq!(&register.read("hits").await.unwrap().unwrap().value[..], b"3");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// Dropping the future leaves the outcome unknown.
///
/// # Errors
/// What `make` fails with. [`ErrorKind::Conflict`](crate::ErrorKind::Conflict) when others changed the object each time;
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when it cannot be told whether the update was applied
/// ([`Error::maybe_applied`]), or the store does not answer; [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for
/// a store that ignores preconditions, an object that is too large, or metadata without room for the nonces; what the
/// store says.
pub async fn update<E: From<Error>, F: Future<Output = Result<Option<Bytes>, E>>>(
    register: &dyn Register,
    key: &str,
    make: impl FnMut(Option<Bytes>) -> F,
) -> Result<Updated, E> {
    trust(register).await.map_err(Error::from)?;
    Change::of(register, key, Look::Content).run(make).await.map(Updated::from)
}
