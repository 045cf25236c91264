//! The PostgreSQL servers of the chaos scenarios.

use std::io;
use std::path::Path;

use async_trait::async_trait;

use super::PostgresServer;
use crate::chaos::replicated::Server;

#[async_trait]
impl Server for PostgresServer {
    async fn primary(folder: &Path) -> io::Result<Self> {
        Self::start_below(folder).await
    }

    async fn replica(&self, folder: &Path) -> io::Result<Self> {
        self.standby_below(folder).await
    }

    fn stop(&self) {
        Self::stop(self);
    }

    fn resume(&self) {
        Self::resume(self);
    }

    async fn kill(&mut self) -> io::Result<()> {
        Self::kill(self).await
    }

    async fn restart(&mut self) -> io::Result<()> {
        Self::restart(self).await
    }

    async fn stop_copying(&self) -> io::Result<()> {
        Self::stop_copying(self).await
    }

    async fn promote(&self) -> io::Result<()> {
        Self::promote(self).await
    }
}
