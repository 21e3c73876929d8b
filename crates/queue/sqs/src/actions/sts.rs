//! STS's GetCallerIdentity, by which clients find out the number of their account.

use serde::Serialize;

use crate::front::RequestContext;

#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct CallerIdentity {
    arn: String,
    user_id: String,
    account: String,
}

pub(super) fn get_caller_identity(context: &RequestContext<'_>) -> CallerIdentity {
    let account = context.account();
    let key = &context.identity.key;
    CallerIdentity {
        arn: format!("arn:aws:iam::{account}:root"),
        user_id: if key.is_empty() { account.to_owned() } else { key.clone() },
        account: account.to_owned(),
    }
}
