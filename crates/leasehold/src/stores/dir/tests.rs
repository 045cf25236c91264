//! The store on real files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use futures_util::{FutureExt, StreamExt as _};
use tempfile::TempDir;

use super::*;
use crate::clock::TestClock;
use crate::error::ErrorKind;
use crate::register::{MAX_VALUE_BYTES, Metadata};

async fn register(folder: &TempDir) -> DirectoryRegister {
    let register = unprepared(folder);
    register.init().await.unwrap();
    register
}

fn unprepared(folder: &TempDir) -> DirectoryRegister {
    DirectoryRegister::new(folder.path().join("locks"), Contents::Records, Env::system()).unwrap()
}

fn files(register: &DirectoryRegister, key: &str) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(register.directory.key(key).path)
        .unwrap()
        .map(|file| file.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

async fn written(register: &DirectoryRegister, key: &str, expect: Precondition<'_>) -> Version {
    match register.write(key, expect, "value".into()).await.unwrap() {
        Write::Committed(version) => version,
        Write::Conflict => panic!("the key is not as expected"),
    }
}

/// Rule 1: the numbers go on after a delete, so that a process that slept writes over nothing.
#[tokio::test]
async fn a_deleted_key_keeps_its_highest_generation() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let first = written(&register, "key", Precondition::Absent).await;
    assert_eq!(register.delete("key", &first).await.unwrap(), Deleted::Deleted);
    assert_eq!(register.read("key").await.unwrap(), None);
    let third = written(&register, "key", Precondition::Absent).await;
    assert!(third.as_str().starts_with("3-"), "{third:?}");
    let late = register.write("key", Precondition::Version(&first), "late".into()).await.unwrap();
    assert_eq!(late, Write::Conflict);
    assert_eq!(files(&register, "key").len(), 3);
}

#[tokio::test]
async fn what_an_examination_deletes_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let key = format!("{RESERVED}1.lock");
    let version = written(&register, &key, Precondition::Absent).await;
    register.delete(&key, &version).await.unwrap();
    assert!(!register.directory.key(&key).path.exists());
    assert!(fs::read_dir(folder.path().join("locks/.leasehold")).unwrap().next().is_none());
}

/// Without its marker, the directory may be the one below a mount point.
#[tokio::test]
async fn a_directory_that_was_not_prepared_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let register = unprepared(&folder);
    fs::create_dir(folder.path().join("locks")).unwrap();
    for error in [
        register.read("key").await.unwrap_err(),
        register.write("key", Precondition::Absent, "value".into()).await.unwrap_err(),
        register.list("").next().await.unwrap().unwrap_err(),
    ] {
        assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error:?}");
        assert!(error.fault().help.as_ref().unwrap().contains("leasehold init --store dir:"), "{error:?}");
    }
    assert!(fs::read_dir(folder.path().join("locks")).unwrap().next().is_none(), "nothing was created");
}

/// Also the format of a file, which must not change.
#[tokio::test]
async fn a_damaged_file_is_no_free_lock() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let version = written(&register, "key", Precondition::Absent).await;
    let path = register.directory.key("key").path.join("00000000000000000001");
    let (_, nonce) = version.as_str().split_once('-').unwrap();
    assert_eq!(fs::read_to_string(&path).unwrap(), format!("leasehold-1 {nonce} 5\nvalue"));
    for damaged in [
        String::new(),
        "{}".to_owned(),
        format!("leasehold-1 {nonce} 5\nval"),
        format!("leasehold-1 {nonce} 5\nvalue\0"),
        format!("leasehold-1 {nonce} deleted\nx"),
        format!("leasehold-1 {nonce} deleted {{\"user\":{{\"a\":\"b\"}}}}\n"),
        format!("leasehold-1 {nonce} 5 \nvalue"),
        format!("leasehold-1 {nonce} 5 {{\"user\":1}}\nvalue"),
        format!("leasehold-2 {nonce} 5\nvalue"),
        "\0".repeat(300),
    ] {
        fs::write(&path, &damaged).unwrap();
        let error = register.read("key").await.unwrap_err();
        assert_eq!(error.fault().kind, ErrorKind::Corrupt, "{damaged:?}");
        let write = register.write("key", Precondition::Absent, "value".into()).await;
        assert!(matches!(write, Err(StoreError::NotApplied(_))), "{damaged:?}");
    }
}

/// Also the format of the header, which must not change.
#[tokio::test]
async fn metadata_is_in_the_header_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let metadata = Metadata {
        content_type: Some("text/plain; charset=utf-8".to_owned()),
        user: [("leasehold-token".to_owned(), "7 \n".to_owned())].into(),
        ..Metadata::default()
    };
    let body = Body { bytes: "a\nb".into(), metadata: metadata.clone() };
    register.write("key", Precondition::Absent, body).await.unwrap();
    let read = register.read("key").await.unwrap().unwrap();
    assert_eq!((read.value.as_ref(), &read.metadata), (&b"a\nb"[..], &metadata));
    let file = fs::read_to_string(register.directory.key("key").path.join(format!("{:020}", 1))).unwrap();
    let header =
        r#" 3 {"content-type":"text/plain; charset=utf-8","user":{"leasehold-token":"7 \n"}}"#.to_owned();
    assert!(file.ends_with(&format!("{header}\na\nb")), "{file}");
}

/// The folders of an object's path are a part of its key, below the directory that was prepared.
#[tokio::test]
async fn an_object_is_in_the_prepared_directory_around_it() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let open = async |path: &str| {
        let url = format!("dir:{}/{path}", folder.path().display());
        open_object(StoreUrl::parse(&url).unwrap(), Env::system()).await.unwrap()
    };
    let (objects, key) = open("locks/prod/a.json").await;
    assert_eq!(key, "prod/a.json");
    let long = "x".repeat(2 * MAX_VALUE_BYTES);
    objects.write(&key, Precondition::Absent, long.clone().into()).await.unwrap();
    let read = open("locks/prod/a.json").await.0.read(&key).await.unwrap().unwrap();
    assert!(read.value == long);
    let as_record = register.read("prod/a.json").await.unwrap_err();
    assert_eq!(as_record.fault().kind, ErrorKind::Corrupt, "{as_record:?}");
    // It does not disturb the listing of locks.
    assert_eq!(register.list("").try_collect::<Vec<_>>().await.unwrap(), ["prod/a.json"]);
    let url = format!("dir:{}/locks", folder.path().display());
    let error = open_object(StoreUrl::parse(&url).unwrap(), Env::system()).await.unwrap_err();
    assert!(error.to_string().contains("not an object in it"), "{error:?}");

    let (elsewhere, key) = open("other/a.json").await;
    assert_eq!(key, "a.json");
    let error = elsewhere.read(&key).await.unwrap_err();
    assert!(error.fault().message.contains("other is not a directory that was prepared"), "{error:?}");
}

/// While the inner directory is not mounted, its objects would be in the outer one.
#[tokio::test]
async fn a_directory_inside_another_one_is_not_prepared() {
    let folder = tempfile::tempdir().unwrap();
    let outer = register(&folder).await;
    let path = outer.directory.path.join("inner");
    let inner = DirectoryRegister::new(path.clone(), Contents::Records, Env::system()).unwrap();
    let error = inner.init().await.unwrap_err();
    assert!(error.fault().message.ends_with("which was prepared for locks"), "{error:?}");
    assert!(!path.exists());
    // Also by a link to a folder in it.
    fs::create_dir(outer.directory.path.join("sub")).unwrap();
    std::os::unix::fs::symlink(outer.directory.path.join("sub"), folder.path().join("sub")).unwrap();
    let by_link = folder.path().join("sub/new");
    let by_link = DirectoryRegister::new(by_link, Contents::Records, Env::system()).unwrap();
    assert!(by_link.init().await.unwrap_err().fault().message.ends_with("which was prepared for locks"));
    // Nor is it used if it was prepared before the outer one, also by a link to it.
    fs::create_dir_all(path.join(".leasehold")).unwrap();
    std::os::unix::fs::symlink(&path, folder.path().join("link")).unwrap();
    for url in [path.display().to_string(), folder.path().join("link").display().to_string()] {
        let url = StoreUrl::parse(&format!("dir:{url}")).unwrap();
        let object = url.object("a.json");
        let locks = open(url, StoreOptions::default()).await.unwrap_err();
        let objects = open_object(object, Env::system()).await.unwrap_err();
        for error in [locks, objects] {
            assert!(error.to_string().ends_with("which was prepared for locks"), "{error:?}");
        }
    }
}

/// Any user can create a marker in `/tmp`.
#[tokio::test]
async fn a_marker_in_a_sticky_directory_counts_for_nothing() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join(".leasehold")).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o1777)).unwrap();
    let inner = register(&folder).await;
    inner.directory.refuse_nested().unwrap();
    let url = StoreUrl::parse(&format!("dir:{}/other/a.json", folder.path().display())).unwrap();
    let (objects, key) = open_object(url, Env::system()).await.unwrap();
    let error = objects.read(&key).await.unwrap_err();
    assert!(error.fault().message.contains("other is not a directory that was prepared"), "{error:?}");
}

#[tokio::test]
async fn metadata_that_no_reader_would_accept_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let metadata = Metadata { content_type: Some("a".repeat(16 << 10)), ..Metadata::default() };
    let body = Body { bytes: "x".into(), metadata };
    let error = register.write("key", Precondition::Absent, body).await.unwrap_err();
    assert!(
        matches!(&error, StoreError::NotApplied(fault) if fault.kind == ErrorKind::Unsupported),
        "{error:?}"
    );
    assert_eq!(register.head("key").await.unwrap(), None);
}

/// Users with different umasks can share a directory.
#[tokio::test]
async fn folders_and_files_have_the_permissions_of_the_directory() {
    for (mode, of_files) in [(0o700, 0o600), (0o2770, 0o660), (0o777, 0o666)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("locks");
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        let register = register(&folder).await;
        let long = "long/".repeat(60);
        written(&register, &long, Precondition::Absent).await;
        let mut inside: Vec<PathBuf> = vec![path];
        while let Some(path) = inside.pop() {
            let metadata = fs::metadata(&path).unwrap();
            let expected = if metadata.is_dir() { mode } else { of_files };
            assert_eq!(metadata.mode() & 0o7777, expected, "{path:?}");
            if metadata.is_dir() {
                inside.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            }
        }
    }
}

#[tokio::test]
async fn keys_are_listed_without_those_that_were_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let register = register(&folder).await;
    let long = format!("team/{}", "x/".repeat(120));
    for key in ["team/a", "other", &long] {
        written(&register, key, Precondition::Absent).await;
    }
    let version = written(&register, "team/deleted", Precondition::Absent).await;
    register.delete("team/deleted", &version).await.unwrap();
    let listed: Vec<_> = register.list("team/").try_collect().await.unwrap();
    assert_eq!(listed, ["team/a".to_owned(), long]);
}

#[test]
fn errors_of_the_system_have_their_kind() {
    use std::io::ErrorKind as K;
    for (system, kind) in [
        (K::PermissionDenied, ErrorKind::Denied),
        (K::ReadOnlyFilesystem, ErrorKind::Denied),
        (K::Unsupported, ErrorKind::Unsupported),
        (K::NotADirectory, ErrorKind::Invalid),
        (K::StorageFull, ErrorKind::Unavailable),
        (K::QuotaExceeded, ErrorKind::Unavailable),
        (K::StaleNetworkFileHandle, ErrorKind::Unavailable),
        (K::Other, ErrorKind::Unavailable),
    ] {
        assert_eq!(errors::fault("read", "x".as_ref(), &system.into()).kind, kind, "{system}");
    }
}

/// A file server that hangs takes a limited number of threads. Requests beyond that end in time, and are not run later.
#[tokio::test(start_paused = true)]
async fn requests_to_a_file_server_that_hangs_end_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    let register = DirectoryRegister::new(folder.path().join("locks"), Contents::Records, env).unwrap();
    let (respond, responds) = std::sync::mpsc::channel::<()>();
    let responds = Arc::new(std::sync::Mutex::new(responds));
    let (begin, began) = std::sync::mpsc::channel();
    let mut hung: Vec<_> = (0..THREADS)
        .map(|_| {
            let (begin, responds) = (begin.clone(), responds.clone());
            let request = register.run(move |_| {
                begin.send(()).unwrap();
                let _ = responds.lock().unwrap().recv();
                Ok(())
            });
            request.boxed()
        })
        .collect();
    // Every thread is taken before the clock moves. The clock stands while this thread is blocked.
    for request in &mut hung {
        assert!(request.now_or_never().is_none());
    }
    hung.iter().for_each(|_| began.recv().unwrap());
    let (ran, late_ran) = tokio::sync::oneshot::channel();
    let late = register.run(move |_| {
        ran.send(()).unwrap();
        Ok(())
    });
    for ended in futures_util::future::join_all(hung.into_iter().chain([late.boxed()])).await {
        let error = ended.unwrap_err();
        assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
        assert_eq!(error.fault().kind, ErrorKind::Unavailable, "{error:?}");
    }
    drop(respond);
    tokio::time::resume();
    assert!(late_ran.await.is_err(), "a request that was given up is dropped");
    assert_eq!(register.run(|_| Ok(7)).await.unwrap(), 7);
}
