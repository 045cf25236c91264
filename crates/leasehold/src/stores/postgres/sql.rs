//! SQL that several statements share.

/// The server's clock in the format of ShedLock's columns: UTC without a time zone.
pub(super) const NOW: &str = "timezone('utc', clock_timestamp())";

/// The server's clock in microseconds since the Unix epoch.
pub(super) const NOW_US: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8";

/// Returns a common table expression that changes settings for the transaction of a write. The commit waits for the
/// disk, and for the synchronous standbys if the server has any. A wait for a row ends before the client gives up.
pub(super) fn settings(timeout: &str) -> String {
    format!(
        "settings AS MATERIALIZED (SELECT
            set_config('synchronous_commit', CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')
                THEN 'on' ELSE current_setting('synchronous_commit') END, true),
            set_config('client_min_messages', 'warning', true),
            set_config('lock_timeout', {timeout}, true))"
    )
}
