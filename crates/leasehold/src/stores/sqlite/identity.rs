//! The files that a connection has open.
//!
//! SQLite keeps two files beside a database in WAL mode: the log (`-wal`) and the memory that processes share (`-shm`).
//! It does not notice if they are deleted while in use. The next process that opens the database then creates new
//! files, and two sets of connections see different locks.
//!
//! SQLite does not report which files it has open. So the names are resolved before and after the files are opened.
//! This shows which files were opened, because an open file keeps its inode number. However, all connections of one
//! process to one database share the `-shm` file that the first of them opened, even if the name leads to another file
//! now. So a process also remembers which files its connections share.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Identifies a file as long as it exists or is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// Returns the id of the file that `path` leads to. Follows symbolic links. Returns `None` if no file can be seen
    /// there.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = std::fs::metadata(path).ok()?;
        Some(Self { device: metadata.dev(), inode: metadata.ino() })
    }
}

/// The `-wal` and the `-shm` file of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Companions {
    wal: FileId,
    shm: FileId,
}

impl Companions {
    /// Returns the companions of the database at `path`, which must have no symbolic links. Returns `None` unless both
    /// exist.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let beside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            FileId::of(Path::new(&name))
        };
        Some(Self { wal: beside("-wal")?, shm: beside("-shm")? })
    }
}

/// The state that the connections of this process to one database share.
#[derive(Clone, Debug, Default)]
pub(super) struct Sharing(Arc<Mutex<Shared>>);

/// A queue that has the database open.
pub(super) trait Closable: Send + Sync {
    /// Closes the database, unless it is in use now.
    fn close_if_idle(&self);
}

#[derive(Debug, Default)]
pub(super) struct Shared {
    companions: Weak<Companions>,
    queues: Vec<Weak<dyn Closable>>,
}

static DATABASES: Mutex<Vec<(FileId, Sharing)>> = Mutex::new(Vec::new());

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Sharing {
    /// Returns the entry of the database in the file `id`.
    pub(super) fn of(id: FileId) -> Self {
        let mut databases = locked(&DATABASES);
        // An inode number may be reused once the file is closed.
        databases.retain(|(_, sharing)| Arc::strong_count(&sharing.0) > 1 || sharing.is_used());
        if let Some((_, sharing)) = databases.iter().find(|(other, _)| *other == id) {
            return sharing.clone();
        }
        let sharing = Self::default();
        databases.push((id, sharing.clone()));
        sharing
    }

    /// Locks the entry, so that only one connection is opened at a time.
    pub(super) fn lock(&self) -> MutexGuard<'_, Shared> {
        locked(&self.0)
    }

    fn is_used(&self) -> bool {
        self.0.try_lock().map_or(true, |shared| shared.companions.strong_count() > 0)
    }
}

impl Shared {
    /// Returns the files that the connections of this process have open. Returns `None` if there is no connection.
    pub(super) fn known(&self) -> Option<Arc<Companions>> {
        self.companions.upgrade()
    }

    /// Records that the first connection has `companions` open.
    pub(super) fn begin(&mut self, companions: Companions) -> Arc<Companions> {
        let companions = Arc::new(companions);
        self.companions = Arc::downgrade(&companions);
        companions
    }

    /// Adds the connection of `queue`.
    pub(super) fn add(&mut self, queue: &Weak<dyn Closable>) {
        self.queues.retain(|other| other.strong_count() > 0 && !other.ptr_eq(queue));
        self.queues.push(queue.clone());
    }

    /// Closes the connections that are not in use now.
    pub(super) fn close_idle(&self) {
        for queue in self.queues.iter().filter_map(Weak::upgrade) {
            queue.close_if_idle();
        }
    }
}
