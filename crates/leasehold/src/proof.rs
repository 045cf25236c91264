//! One engine asks all questions of a store's safety.
//!
//! A store that ignores `If-Match` grants one lock to every client. A store that does not check it atomically grants
//! one lock to several clients in a race. Without a race, such a store behaves like a correct one. So a store must pass
//! [races] before it is used for locks. The [`questions`] are asked of [`cells`], keys with conditional writes, which
//! registers, DynamoDB and Kubernetes have. There are two selections of the questions: a short one [before the first
//! use](first_use), once per process and prefix, and all of them, with a finding for each, for the [`doctor`].
//!
//! The verdict is recorded in the store: the [marker](marker::Marker) contains the endpoint and bucket, the time, and an
//! outdated version of the marker itself. If it records that this store passed, a process reads it and checks that a
//! write with the outdated version is refused. This takes two requests. If there is no such marker, the process asks the
//! questions, with races, while other processes wait. If the marker records that the store is unsafe, it is refused
//! without races. Only the doctor can lift a refusal, because a store without atomic checks would eventually pass a
//! probe that is repeated often enough.

pub(crate) mod cells;
mod checks;
pub(crate) mod clock;
pub mod doctor;
mod examine;
mod first_use;
#[cfg(test)]
pub(crate) mod flawed;
mod front_ends;
mod marker;
pub(crate) mod questions;
pub(crate) mod races;
pub(crate) mod trust;

pub(crate) use self::examine::examine_register;
pub(crate) use self::first_use::{LIMIT, prove};
use self::front_ends::Fronts;
pub(crate) use self::marker::Subject;
#[allow(unused_imports, reason = "used by stores that are cargo features")]
pub(crate) use self::{examine::examine_cells, marker::KEY};
use crate::error::StoreError;
use crate::register::Register;
use crate::retry::retry;

/// The key for the check that metadata is stored.
const KEEPSAKE: &str = ".leasehold-probe-metadata";

/// Checks that `register` enforces its preconditions, by writing to its own objects.
///
/// Not cancel safe: a dropped probe leaves the objects that it has written. The next probe can handle them.
///
/// ```
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{ErrorKind, Register, doctor::probe};
///
/// match probe(&register).await {
///     Ok(()) => println!("conditional writes are safe here"),
///     Err(error) if error.fault().kind == ErrorKind::Unsupported => eprintln!("do not use it: {error}"),
///     Err(error) => eprintln!("not known, try again: {error}"),
/// }
/// // The verdict, which spares other processes the full probe.
/// assert!(register.read(".leasehold-probe").await?.is_some());
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Returns [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store ignores preconditions or does not check them atomically, or was
/// found to do so earlier. Returns the store's error if it cannot be read or written, and the last error if it stays
/// busy.
pub async fn probe(register: &dyn Register) -> Result<(), StoreError> {
    prove(&Fronts::only(register), Subject::Writes).await
}

/// Checks that deletes of `register` are conditional, and that a delete and a write cannot both succeed. This is needed
/// for locks whose release deletes, and for sweeps.
///
/// Not cancel safe, like [`probe`].
///
/// ```
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::doctor::probe_deletes;
/// use leasehold::register::{Deleted, Precondition, Register, Write};
///
/// probe_deletes(&register).await?; // once, before the first delete
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(version) = created else { panic!("the key exists") };
/// let replaced = register.write("limit", Precondition::Version(&version), "20".into()).await?;
/// assert!(matches!(replaced, Write::Committed(_)));
/// assert_eq!(register.delete("limit", &version).await?, Deleted::Conflict);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Returns the same errors as [`probe`].
pub async fn probe_deletes(register: &dyn Register) -> Result<(), StoreError> {
    prove(&Fronts::only(register), Subject::Deletes).await
}

/// Checks that `register` stores the metadata of an object, which contains fences and the nonces of updates. Sends two
/// requests.
pub(crate) async fn probe_metadata(register: &dyn Register) -> Result<(), StoreError> {
    let kept = retry(register.env(), || checks::keeps_metadata(register, KEEPSAKE)).await;
    kept.map_err(first_use::explained)
}

#[cfg(test)]
mod tests;
