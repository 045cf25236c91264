//! A store that ignores preconditions would grant a lock to every client. It is refused before it grants anything.

#[cfg(feature = "s3")]
mod s3 {
    use futures_util::TryStreamExt;
    use leasehold::{Error, ErrorKind, Locker, Object, Token};
    use leasehold_testkit::fakes::s3::{FakeS3, Preconditions};
    use leasehold_testkit::servers::{Server, below};

    async fn locker(server: &FakeS3) -> Locker {
        Locker::open(&server.url()).await.unwrap()
    }

    #[tokio::test]
    async fn a_server_that_ignores_preconditions_is_refused() {
        let server = FakeS3::start(Preconditions::Ignored).await;
        let locker = locker(&server).await;
        for attempt in 0..2 {
            let error = locker.lock("deploy/prod").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "attempt {attempt}: {error:?}");
            assert!(!error.help().is_empty(), "{error:?}");
        }
        let records: Vec<_> = server.paths().into_iter().filter(|path| path.ends_with(".lock")).collect();
        assert!(records.is_empty(), "{records:?}");
    }

    /// Updates and fenced writes also rely on preconditions, so they are refused as well.
    #[tokio::test]
    async fn a_server_that_ignores_preconditions_is_given_no_object() {
        let server = FakeS3::start(Preconditions::Ignored).await;
        let object = Object::open(&below(&server.url(), "counter.json")).await.unwrap();
        let updated = object.update(async |_| Ok::<_, Error>(Some("1".into()))).await.map(|_| ());
        let written = object.write_fenced(Token::new(1).unwrap(), "1").await;
        for outcome in [updated, written] {
            assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Unsupported);
        }
        assert!(!server.paths().iter().any(|path| path.ends_with("counter.json")), "{:?}", server.paths());
    }

    /// The same server is accepted with preconditions. This shows that it was refused only for ignoring them.
    #[tokio::test]
    async fn a_server_that_honours_preconditions_is_accepted() {
        let server = FakeS3::start(Preconditions::Honoured).await;
        let locker = locker(&server).await;
        let guard = locker.lock("deploy/prod").try_acquire().await.unwrap();
        assert_eq!(locker.lock("deploy/prod").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
        guard.release().await.unwrap();
        locker.lock("deploy/prod").try_acquire().await.unwrap().release().await.unwrap();
    }

    /// MinIO ignores `If-Match` on deletes, and with this protocol a release deletes. MinIO is refused before it grants
    /// anything, not at the first release.
    #[tokio::test]
    async fn a_server_that_deletes_without_preconditions_is_refused() {
        let url = format!("{}&protocol=existence", Server::MINIO.fresh_url());
        let locker = Locker::open(&url).await.unwrap();
        for attempt in 0..2 {
            let error = locker.lock("deploy/prod").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "attempt {attempt}: {error:?}");
            assert!(error.help()[0].contains("leave out ?protocol"), "{error:?}");
        }
        assert_eq!(locker.list("").try_collect::<Vec<_>>().await.unwrap(), []);
    }
}

#[cfg(feature = "gcs")]
mod gcs {
    use futures_util::TryStreamExt;
    use leasehold::{ErrorKind, Locker};
    use leasehold_testkit::servers::Server;

    /// gcp-storage-emulator ignores the preconditions of uploads that carry metadata.
    #[tokio::test]
    async fn an_emulator_that_ignores_preconditions_is_refused() {
        let url = Server::BAD_GCS.fresh_url();
        let locker = Locker::open(&url).await.unwrap();
        for attempt in 0..2 {
            let error = locker.lock("deploy/prod").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Unsupported, "attempt {attempt}: {error:?}");
            // On the second attempt, the examined object has no generation when it is read.
            let reason = ["precondition", "generation"][attempt];
            assert!(error.to_string().contains(reason), "{error:?}");
            assert!(!error.help().is_empty(), "{error:?}");
        }
        assert_eq!(locker.list("").try_collect::<Vec<_>>().await.unwrap(), []);
    }
}

#[cfg(feature = "dynamodb")]
mod dynamodb {
    use futures_util::TryStreamExt;
    use leasehold::{ErrorKind, Locker};
    use leasehold_testkit::servers::Server;

    /// Unmodified moto checks a condition and then writes, so two simultaneous writers may both succeed. Each prefix is
    /// examined again.
    #[tokio::test]
    async fn a_dynamodb_that_checks_and_writes_in_two_steps_is_refused() {
        for _ in 0..5 {
            let url = Server::DYNAMODB_RACY.fresh_url();
            for attempt in 0..2 {
                let locker = Locker::open(&url).await.unwrap();
                let error = locker.lock("deploy/prod").try_acquire().await.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Unsupported, "attempt {attempt}: {error:?}");
                assert!(error.to_string().contains("at once, it accepted"), "{error:?}");
                assert!(!error.help().is_empty(), "{error:?}");
                assert_eq!(locker.list("").try_collect::<Vec<_>>().await.unwrap(), []);
            }
        }
    }
}
