//! Errors in the form that clients receive: problem details (RFC 9457) with `help`.

mod problem_type;

use std::time::Duration;

use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use leasehold::lease::HolderInfo;
use leasehold::view::HolderView;
use leasehold::{Error, ErrorKind, LockName, Loss, LossReason, Token};
use serde::Serialize;
use utoipa::ToSchema;

pub(crate) use self::problem_type::ProblemType;
use crate::view::hide_in_holder;
use crate::words;

/// What went wrong, and what to do. A field that does not apply is missing.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub(crate) struct Problem {
    /// What went wrong, for programs.
    #[serde(rename = "type")]
    kind: ProblemType,
    /// The status of the response.
    #[schema(minimum = 400, maximum = 599)]
    status: u16,
    /// The status in words.
    title: &'static str,
    /// What went wrong in this case.
    detail: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    help: Vec<String>,
    /// Who holds the lock, for `held`, and for `lost` with the reason `taken_over`.
    #[serde(skip_serializing_if = "Option::is_none")]
    held_by: Option<Box<HolderView>>,
    /// How the lock was lost, for `lost` and `key-spent`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<words::LossReason>)]
    reason: Option<&'static str>,
    /// For `changed`: the current token; null if the lock is not held. For `lost` and `key-spent`: the token that was
    /// lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Token>)]
    token: Option<Option<u64>>,
    /// If the request asked for another number of permits or readers than the store has: both.
    #[serde(skip_serializing_if = "Option::is_none")]
    sizes: Option<SizesView>,
    /// The outcome in metrics, if it is not the kind.
    #[serde(skip)]
    outcome: Option<&'static str>,
    #[serde(skip)]
    headers: Vec<(HeaderName, HeaderValue)>,
}

/// Two numbers of permits or readers that differ.
#[derive(Clone, Copy, Debug, Serialize, ToSchema)]
#[schema(as = Sizes)]
pub(crate) struct SizesView {
    /// What the request asked for.
    asked: u64,
    /// What the store has.
    stored: u64,
}

impl Problem {
    pub(crate) fn new(kind: ProblemType, detail: impl Into<String>) -> Self {
        let problem = Self {
            kind,
            status: 0,
            title: "Error",
            detail: detail.into(),
            help: Vec::new(),
            held_by: None,
            reason: None,
            token: None,
            sizes: None,
            outcome: None,
            headers: Vec::new(),
        };
        problem.with_status(kind.status())
    }

    /// Changes the status, if it is not the one of the type.
    pub(crate) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status.as_u16();
        self.title = status.canonical_reason().unwrap_or("Error");
        self
    }

    /// Creates the problem for a wrong request.
    pub(crate) fn invalid(detail: impl Into<String>) -> Self {
        Self::new(ProblemType::Invalid, detail)
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Asks the client not to send another request before `pause` has passed.
    pub(crate) fn retry_after(mut self, pause: Duration) -> Self {
        let seconds = pause.as_secs() + u64::from(pause.subsec_nanos() > 0);
        self.headers.push((header::RETRY_AFTER, HeaderValue::from(seconds.max(1))));
        self
    }

    pub(crate) fn with_header(mut self, name: HeaderName, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    /// Creates the problem for a lock whose token is not the one that the request names.
    pub(crate) fn changed(detail: impl Into<String>, token: Option<u64>) -> Self {
        let mut problem = Self::new(ProblemType::Changed, detail);
        problem.token = Some(token);
        problem
    }

    /// Adds which grant was lost, and how.
    pub(crate) fn with_loss(mut self, loss: &Loss) -> Self {
        self.token = Some(Some(loss.token.get()));
        self.with_reason(&loss.reason)
    }

    /// Adds how a grant was lost.
    fn with_reason(mut self, reason: &LossReason) -> Self {
        debug_assert!(words::LOSS_REASONS.contains(&reason.as_str()), "{reason:?}");
        self.reason = Some(reason.as_str());
        if let LossReason::TakenOver { by } = reason {
            self.held_by = Some(held_by(by));
        }
        self
    }

    /// Creates the problem for the loss of a grant that the store has made.
    pub(crate) fn lost(loss: &Loss) -> Self {
        Self::new(ProblemType::Lost, loss.to_string()).with_loss(loss)
    }

    /// Creates the problem for a ticket whose grant is not known. It may be forged, so its token is not repeated.
    pub(crate) fn unknown_grant(name: &LockName, reason: &LossReason) -> Self {
        let detail =
            format!("lock `{name}` is not held with this ticket, and the store has no record of its grant");
        let mut problem = Self::new(ProblemType::Lost, detail).with_reason(reason);
        problem.outcome = Some("unknown");
        problem
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    pub(crate) fn help(&self) -> &[String] {
        &self.help
    }

    /// Returns the outcome in metrics. By default, this is the kind.
    pub(crate) fn outcome(&self) -> &str {
        self.outcome.unwrap_or_else(|| self.word())
    }

    /// Returns the kind as one word, such as `held`.
    pub(crate) fn word(&self) -> &'static str {
        self.kind.word()
    }
}

/// Returns the holder as any caller may see it.
fn held_by(held: &HolderInfo) -> Box<HolderView> {
    let mut view = HolderView::of(held);
    hide_in_holder(&mut view);
    Box::new(view)
}

impl From<Error> for Problem {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::Held => ProblemType::Held,
            ErrorKind::Lost => ProblemType::Lost,
            ErrorKind::Unavailable => ProblemType::Unavailable,
            ErrorKind::Denied => ProblemType::StoreDenied,
            ErrorKind::Invalid => ProblemType::Invalid,
            ErrorKind::Unsupported => ProblemType::Unsupported,
            ErrorKind::Conflict => ProblemType::Conflict,
            ErrorKind::Corrupt => ProblemType::Corrupt,
            _ => ProblemType::Failed,
        };
        let mut problem = Self::new(kind, error.to_string());
        problem.help = error.help().to_vec();
        problem.sizes = error.sizes().map(|sizes| SizesView { asked: sizes.asked, stored: sizes.stored });
        if let Some(held) = error.holder() {
            problem.held_by = Some(held_by(held));
            let pause = held.lapses_within.unwrap_or(Duration::from_secs(1));
            problem = problem.retry_after(pause.clamp(Duration::from_secs(1), Duration::from_secs(30)));
        }
        if let Some(loss) = error.loss() {
            problem = problem.with_loss(loss);
        }
        if error.kind() == ErrorKind::Unavailable {
            problem = problem.retry_after(Duration::from_secs(1));
        }
        problem
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status();
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (status, body).into_response();
        let json = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response.headers_mut().extend(self.headers);
        response
    }
}
