//! Who may make which request: what each path is about, and whether its sender has the right.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::Extensions;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use tailwater_access::{AccessRequest, Authorizer, Denied, Peer, Protocol, Resource};
use tailwater_format::call::{CallErrorCode, CallRefusal};

use super::{ConnectionSender, Failed};
use crate::NodeShared;

/// Lets a request through that its sender may make.
pub(super) async fn authorized(
    State(shared): State<Arc<NodeShared>>,
    request: Request,
    next: Next,
) -> Response {
    match ask(&*shared.gate.authorizer, Protocol::Http, &request) {
        Ok(()) => next.run(request).await,
        Err(denied) => refused(denied).into_response(),
    }
}

pub(super) fn refused(denied: Denied) -> Failed {
    Failed(CallRefusal::new(CallErrorCode::NotAuthorized, denied.to_string()))
}

/// Whether a request's sender may make it.
pub(crate) fn ask(authorizer: &dyn Authorizer, protocol: Protocol, request: &Request) -> Result<(), Denied> {
    let path = request.uri().path();
    let named = (protocol == Protocol::Http).then(|| named(path)).flatten();
    let resource = named.as_ref().map_or(Resource::Path(path), |(of, name)| of(name));
    let operation = request.method().as_str();
    authorizer.authorize(sender(request.extensions())?, AccessRequest { protocol, operation, resource })
}

/// Who sent a request.
///
/// # Errors
/// Nobody knows: it did not come over a connection.
fn sender(extensions: &Extensions) -> Result<&Peer, Denied> {
    let sender = extensions.get::<ConnectionSender>();
    sender.map(|sender| &*sender.peer).ok_or_else(|| Denied("nobody knows who sent this".to_owned()))
}

type OfName = for<'a> fn(&'a str) -> Resource<'a>;

/// What a path names: `/v1/streams/NAME` and what is below it. Names are compared as the routes take them.
fn named(path: &str) -> Option<(OfName, String)> {
    let mut parts = path.strip_prefix("/v1/")?.split('/');
    let of: OfName = match parts.next()? {
        "streams" => |name| Resource::Stream(name),
        "groups" => |name| Resource::Group(name),
        "cells" => |name| Resource::Cell(name),
        _ => return None,
    };
    let name = percent_decode_str(parts.next()?).decode_utf8().ok()?;
    Some((of, name.into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str) -> Option<String> {
        named(path).map(|(of, name)| format!("{:?}", of(&name)))
    }

    #[test]
    fn a_path_is_about_the_resource_that_it_names_however_the_name_is_written() {
        assert_eq!(of("/v1/streams/news").as_deref(), Some("Stream(\"news\")"));
        assert_eq!(of("/v1/streams/n%65ws/truncate").as_deref(), Some("Stream(\"news\")"));
        assert_eq!(of("/v1/groups/a%2Fb/reset").as_deref(), Some("Group(\"a/b\")"));
        assert_eq!(of("/v1/cells/data/clear").as_deref(), Some("Cell(\"data\")"));
    }

    #[test]
    fn a_path_that_names_nothing_is_about_itself() {
        for path in ["/", "/v1/streams", "/v1/node", "/v1/users/alice", "/v2/streams/news", "/v1/streams/%ff"]
        {
            assert_eq!(of(path), None, "{path}");
        }
    }
}
