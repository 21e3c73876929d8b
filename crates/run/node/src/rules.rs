//! The rules of a node: what a start needs of them, so that nobody locks himself out, and what their audit has besides.

use std::sync::Arc;

use anyhow::Context;
use tailwater_access::{ANONYMOUS, Peer};
use tailwater_env::Env;
use tailwater_login::{LoginError, RefusedLogin, Users};
use tailwater_permissions::{Audit, AuditEvent, Enforcement, Rules};

use crate::config::Config;

/// The audit's file in the data directory.
const AUDIT: &str = "audit.jsonl";

/// The rules as the configuration has them, before those of the metadata are read. Blocks on the audit's file.
pub(crate) fn open(env: &Env, config: &Config) -> anyhow::Result<Arc<Rules>> {
    let access = &config.access;
    let audit = match access.rules {
        Enforcement::Off => None,
        Enforcement::Report | Enforcement::Enforce => {
            let path = access.audit.clone().unwrap_or_else(|| config.data.join(AUDIT));
            let audit = Audit::open(env, &path);
            Some(audit.with_context(|| format!("the audit {} can't be written", path.display()))?)
        }
    };
    // Whoever runs the node can read and write its files, and it asks its own cells for what is in them.
    let own = [rustix::process::geteuid(), rustix::process::Uid::ROOT];
    let own = own.map(|uid| Peer::principal_of_uid(uid.as_raw()));
    let super_users = access.super_users.iter().cloned().chain(own).collect();
    let rules = Rules::new(env, access.rules, super_users, audit);
    rules.map_subjects(access.certificates.clone()).context("[[access.certificates]]")?;
    Ok(rules)
}

/// Has the audit, if there is one, told of each login that is refused.
pub(crate) fn audit_refused_logins(env: &Env, rules: &Arc<Rules>, users: &Users) {
    if rules.audit().is_none() {
        return;
    }
    let (env, rules) = (env.clone(), Arc::clone(rules));
    users.on_refused(move |RefusedLogin { mechanism, address, error }| {
        let Some(audit) = rules.audit() else { return };
        let name = match error {
            LoginError::Refused { user } => user.clone(),
            LoginError::Malformed(_) | LoginError::NoToken | LoginError::TooMany => String::new(),
        };
        audit.tell(AuditEvent {
            time_ms: env.wall_ms(),
            number: 0,
            outcome: "refused".to_owned(),
            principal: ANONYMOUS.to_owned(),
            address: address.map(|address| address.to_string()).unwrap_or_default(),
            protocol: "login".to_owned(),
            request: mechanism.name().to_owned(),
            operation: "login".to_owned(),
            kind: "user".to_owned(),
            name,
            dropped: 0,
        });
    });
}

/// Who may change rules, and how he can show who he is. Where rules are enforced somebody has to be able to.
pub(crate) struct SuperUsers {
    names: Vec<String>,
    is_needed: bool,
    /// Whether one of them has a certificate that listeners ask for.
    with_certificate: bool,
}

impl SuperUsers {
    pub(crate) fn of(config: &Config) -> Self {
        let access = &config.access;
        Self {
            names: access.super_users.clone(),
            is_needed: access.rules == Enforcement::Enforce,
            with_certificate: access.has_certified_super_user() && config.tls.client_ca.is_some(),
        }
    }

    /// Lets nobody remove the last one that can.
    pub(crate) fn guard(self, users: &Users) {
        users.guard(move |left| match self.are_locked_out(left) {
            false => Ok(()),
            true => Err(
                "that is the last super user who can log in, and rules are enforced: name another one in [access] \
                 super_users first"
                    .to_owned(),
            ),
        });
    }

    /// Whether nobody could change a rule any more where `users` are those with passwords.
    fn are_locked_out(&self, users: &[String]) -> bool {
        let with_password = self.names.iter().any(|name| users.contains(name));
        self.is_needed && !with_password && !self.with_certificate
    }

    /// # Errors
    /// That nobody could, and what to write.
    pub(crate) fn check(&self, users: &Users) -> anyhow::Result<()> {
        anyhow::ensure!(
            !self.are_locked_out(&users.names()),
            "[access] rules = \"enforce\", and no super user can log in, so nobody could ever change a rule. Write \
             super_users = [\"CN=...\"] with the subject of a certificate of client_ca in [tls], or the name of a user \
             that `tailwater user add` has added"
        );
        Ok(())
    }
}
