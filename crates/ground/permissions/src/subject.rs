//! Whose certificates are whose: a subject that stands for a user's name.

use serde::{Deserialize, Serialize};

use crate::rule::ALL;

/// A subject of certificates, and the user that whoever shows one is taken for by rules, besides the subject itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubjectMapping {
    /// The subject, as in `CN=*,O=Example`: one `*` stands for what has no comma.
    pub subject: String,
    /// The user's name; `*` in it is what that stood for.
    pub user: String,
}

impl SubjectMapping {
    /// # Errors
    /// What is wrong with it.
    pub fn check(&self) -> Result<(), String> {
        if !is_subject(&self.subject) || self.subject.matches(ALL).count() > 1 {
            return Err(format!("{:?} is no subject with one * at most, as in CN=*,O=Example", self.subject));
        }
        let stars = self.user.matches(ALL).count();
        match stars > self.subject.matches(ALL).count() || self.named("a").is_none() {
            true => Err(format!("{:?} is no user's name, with a * where the subject has one", self.user)),
            false => Ok(()),
        }
    }

    /// The user that a principal stands for, if it is such a subject.
    pub(crate) fn user_of(&self, principal: &str) -> Option<String> {
        // Other principals have their kind before a colon.
        if !is_subject(principal) {
            return None;
        }
        let Some((begin, end)) = self.subject.split_once(ALL) else {
            return (self.subject == principal).then(|| self.user.clone());
        };
        let found = principal.strip_prefix(begin)?.strip_suffix(end)?;
        if found.is_empty() || found.contains(',') { None } else { self.named(found) }
    }

    /// The user's name with this in the place of the star, if that is one.
    fn named(&self, found: &str) -> Option<String> {
        let name = self.user.replace(ALL, found);
        let may = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.@".contains(&byte);
        (!name.is_empty() && name.bytes().all(may)).then_some(name)
    }
}

/// Whether it begins with the kind of an attribute: `CN=`, or the number of one.
fn is_subject(text: &str) -> bool {
    let kind = text.split_once('=').map(|(kind, _)| kind);
    kind.is_some_and(|kind| {
        !kind.is_empty() && kind.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'.')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapping(subject: &str, user: &str) -> SubjectMapping {
        SubjectMapping { subject: subject.to_owned(), user: user.to_owned() }
    }

    #[test]
    fn a_subject_is_the_user_that_is_written_for_it_and_no_other_is() {
        let apps = mapping("CN=*,O=Example", "app-*");
        apps.check().expect("right");
        assert_eq!(apps.user_of("CN=orders,O=Example").as_deref(), Some("app-orders"));
        for other in [
            "CN=,O=Example",
            "CN=orders,O=Other",
            "CN=orders,OU=x,O=Example",
            "CN=or ders,O=Example",
            "CN=a:b,O=Example",
            "jwt:CN=orders,O=Example",
            "orders",
        ] {
            assert_eq!(apps.user_of(other), None, "{other}");
        }
        let one = mapping("CN=ops", "ops");
        assert_eq!((one.user_of("CN=ops").as_deref(), one.user_of("CN=ops2")), (Some("ops"), None));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_is_wrong() {
        for (subject, user) in [("", "a"), ("orders", "a"), ("jwt:CN=*", "*"), ("CN=*,O=*", "*")] {
            assert!(mapping(subject, user).check().expect_err(subject).contains("no subject"));
        }
        for user in ["", "*", "a:b", "CN=a"] {
            assert!(mapping("CN=a", user).check().expect_err(user).contains("no user's name"), "{user}");
        }
    }
}
