//! What is answered in place of what was asked for: a status, a word for programs, and a sentence for people, as JSON.

use axum::Json;
use axum::extract::rejection::{JsonRejection, QueryRejection};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::api::ErrorBody;

/// An error as JSON, under the status that fits.
pub(super) struct AdminRefusal(pub(super) StatusCode, pub(super) &'static str, pub(super) String);

impl AdminRefusal {
    fn malformed(why: String) -> Self {
        Self(StatusCode::BAD_REQUEST, "malformed", why)
    }
}

impl IntoResponse for AdminRefusal {
    fn into_response(self) -> Response {
        let Self(status, error, message) = self;
        (status, Json(ErrorBody { error: error.to_owned(), message })).into_response()
    }
}

impl From<JsonRejection> for AdminRefusal {
    fn from(rejection: JsonRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}

impl From<QueryRejection> for AdminRefusal {
    fn from(rejection: QueryRejection) -> Self {
        Self::malformed(rejection.body_text())
    }
}
