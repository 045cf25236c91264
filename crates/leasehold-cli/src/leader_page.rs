//! Who leads, over HTTP (`elect --http`). Without the feature `serve`, there is no such option and no listener.

#[cfg(feature = "serve")]
use std::net::SocketAddr;

#[cfg(feature = "serve")]
pub(crate) use leasehold_serve::LeaderListener;

#[cfg(not(feature = "serve"))]
pub(crate) use self::without::LeaderListener;
#[cfg(feature = "serve")]
use crate::exit::Failure;
#[cfg(feature = "serve")]
use crate::output::{Output, print_on_stderr};

/// Listens on `address`, and prints the address that was chosen.
#[cfg(feature = "serve")]
pub(crate) fn listen(address: SocketAddr, output: &Output) -> Result<LeaderListener, Failure> {
    let listener = LeaderListener::bind(address, "--http")?;
    if let Some(address) = listener.address().filter(|_| !output.quiet) {
        let address = format!("http://{address}");
        let line = match output.json {
            true => serde_json::json!({ "type": "serving", "address": address }).to_string(),
            false => format!("answering who leads on {address}"),
        };
        print_on_stderr(&format!("{line}\n"));
    }
    Ok(listener)
}

#[cfg(not(feature = "serve"))]
mod without {
    use std::sync::Arc;
    use std::time::Duration;

    use leasehold::clock::Clock;
    use leasehold::{Election, Guard, Leader};

    /// Never exists. The listener and its page at once.
    #[derive(Clone, Debug)]
    pub(crate) enum LeaderListener {}

    impl LeaderListener {
        pub(crate) fn serve(self, _: Arc<dyn Clock>, _: Duration) -> Self {
            self
        }

        pub(crate) fn leads(&self, _: &Guard, _: Option<&str>) {}

        pub(crate) fn saw(&self, _: Option<Leader>) {}

        pub(crate) fn pause(&self) -> Duration {
            match *self {}
        }

        pub(crate) async fn observe(&self, _: &Election) {}
    }
}
