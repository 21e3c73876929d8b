//! What is kept of users' passwords, as Kafka's clients look at it and change it (KIP-554): the node's own users.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tailwater_login::{Mechanism, SaltedPassword, ScramChange, UserError, Users};

use crate::broker::{Broker, Context};
use crate::errors::ErrorCode;
use crate::messages::security::{
    AlterUserScramCredentialsRequest, AlterUserScramCredentialsResponse, AlterUserScramCredentialsResult,
    CredentialInfo, DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
};

/// The mechanisms and their numbers.
const MECHANISMS: [(Mechanism, i8); 2] = [(Mechanism::ScramSha256, 1), (Mechanism::ScramSha512, 2)];

/// Why a request, or a user of it, is refused.
type RefusedScram = (ErrorCode, String);

impl Broker {
    /// The users, for whom may do this to them.
    fn users_for(&self, context: &Context) -> Result<&Arc<Users>, RefusedScram> {
        self.authorize_cluster(context)
            .map_err(|code| (code, "this client may not do this to users".to_owned()))?;
        let users = self.users.as_ref();
        users.ok_or_else(|| (ErrorCode::SecurityDisabled, "there are no users here".to_owned()))
    }
}

fn mechanism(number: i8) -> Result<Mechanism, RefusedScram> {
    let known = MECHANISMS.into_iter().find(|(_, own)| *own == number);
    known.map(|(mechanism, _)| mechanism).ok_or_else(|| {
        let why = format!("there is no mechanism {number}: SCRAM-SHA-256 (1), SCRAM-SHA-512 (2)");
        (ErrorCode::UnsupportedSaslMechanism, why)
    })
}

fn refused(error: UserError) -> RefusedScram {
    let code = match &error {
        UserError::Invalid(_) => ErrorCode::UnacceptableCredential,
        UserError::Unknown(_) | UserError::UnknownToken(_) | UserError::NoSuchMechanism(_) => {
            ErrorCode::ResourceNotFound
        }
        UserError::Needed(_) => ErrorCode::PolicyViolation,
        // Clients try these again by themselves.
        UserError::Unavailable(_) => ErrorCode::CoordinatorNotAvailable,
    };
    (code, error.to_string())
}

pub(crate) async fn describe_user_scram_credentials(
    broker: Arc<Broker>,
    context: Context,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let users = match broker.users_for(&context) {
        Ok(users) => users,
        Err((code, why)) => {
            return DescribeUserScramCredentialsResponse {
                error_code: code.number(),
                error_message: Some(why),
                ..Default::default()
            };
        }
    };
    let named = request.users.filter(|named| !named.is_empty());
    let names: Vec<String> = match named {
        Some(named) => named.into_iter().map(|user| user.name).collect(),
        None => users.names(),
    };
    let mut asked: BTreeMap<String, usize> = BTreeMap::new();
    for name in names {
        *asked.entry(name).or_default() += 1;
    }
    let results = asked.into_iter().map(|(user, times)| describe(users, user, times)).collect();
    DescribeUserScramCredentialsResponse { results, ..Default::default() }
}

fn describe(users: &Users, user: String, times: usize) -> DescribeUserScramCredentialsResult {
    let found = match users.scram(&user) {
        _ if times > 1 => Err((ErrorCode::DuplicateResource, "the user is named more than once")),
        None => Err((ErrorCode::ResourceNotFound, "there is no such user")),
        Some(kept) => Ok(kept),
    };
    let (error_code, error_message, kept) = match found {
        Ok(kept) => (0, None, kept),
        Err((code, why)) => (code.number(), Some(why.to_owned()), vec![]),
    };
    let info = |(mechanism, iterations): (Mechanism, u32)| {
        let number = MECHANISMS.into_iter().find(|(own, _)| *own == mechanism)?.1;
        Some(CredentialInfo { mechanism: number, iterations: i32::try_from(iterations).ok()? })
    };
    let credential_infos = kept.into_iter().filter_map(info).collect();
    DescribeUserScramCredentialsResult { user, error_code, error_message, credential_infos }
}

/// What is said of a user is done together or not at all; of each user by itself.
pub(crate) async fn alter_user_scram_credentials(
    broker: Arc<Broker>,
    context: Context,
    request: AlterUserScramCredentialsRequest,
) -> AlterUserScramCredentialsResponse {
    let deletions = request.deletions.into_iter().map(|deletion| (deletion.name, deletion.mechanism, None));
    let upsertions = request.upsertions.into_iter().map(|upsertion| {
        let to = SaltedPassword {
            // A number below zero is none that would do.
            iterations: u32::try_from(upsertion.iterations).unwrap_or(0),
            salt: upsertion.salt.to_vec(),
            salted: upsertion.salted_password.to_vec(),
        };
        (upsertion.name, upsertion.mechanism, Some(to))
    });
    let mut of_users: BTreeMap<String, Vec<(i8, Option<SaltedPassword>)>> = BTreeMap::new();
    for (name, mechanism, to) in deletions.chain(upsertions) {
        of_users.entry(name).or_default().push((mechanism, to));
    }
    let mut results = Vec::new();
    for (user, changes) in of_users {
        let outcome = match broker.users_for(&context) {
            Ok(users) => alter(users, &user, changes).await,
            Err(refused) => Err(refused),
        };
        let (error_code, error_message) = match outcome {
            Ok(()) => (0, None),
            Err((code, why)) => (code.number(), Some(why)),
        };
        if error_code == 0 {
            tracing::info!(user, "a user's password was changed");
        }
        results.push(AlterUserScramCredentialsResult { user, error_code, error_message });
    }
    AlterUserScramCredentialsResponse { results, ..Default::default() }
}

async fn alter(
    users: &Arc<Users>,
    user: &str,
    changes: Vec<(i8, Option<SaltedPassword>)>,
) -> Result<(), RefusedScram> {
    let named: BTreeSet<i8> = changes.iter().map(|(mechanism, _)| *mechanism).collect();
    if named.len() < changes.len() {
        return Err((
            ErrorCode::DuplicateResource,
            "a mechanism is named more than once for the user".to_owned(),
        ));
    }
    let changes =
        changes.into_iter().map(|(number, to)| Ok(ScramChange { mechanism: mechanism(number)?, to }));
    let changes = changes.collect::<Result<Vec<_>, RefusedScram>>()?;
    users.set_scram(user, changes).await.map_err(refused)
}
