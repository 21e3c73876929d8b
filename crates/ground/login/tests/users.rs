//! Users over real metadata, and clients that log in as them.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use tailwater_env::Env;
use tailwater_journal::{Journal, JournalConfig};
use tailwater_login::{Login, LoginError, LoginStep, Mechanism, UserError, Users};
use tailwater_meta::{EmbeddedMeta, Meta, MetaConfig, Recovery};

struct World {
    env: Env,
    dir: tempfile::TempDir,
    /// What is open of it.
    journal: Option<Journal>,
}

impl World {
    fn new() -> Self {
        Self { env: Env::real(), dir: tempfile::tempdir().expect("a directory"), journal: None }
    }

    /// The users, as a node that starts finds them. One that ran has ended.
    async fn users(&mut self) -> Arc<Users> {
        if let Some(journal) = self.journal.take() {
            journal.close().await.expect("durable");
        }
        let mut recovery = Recovery::begin(&self.env, &self.dir.path().join("meta")).expect("readable");
        let mut replay = |tag, position, bytes: &[u8]| match tag {
            tailwater_meta::TAG => recovery.replay(position, bytes),
            _ => Ok(()),
        };
        let config = JournalConfig { file_bytes: 16 << 20, ..JournalConfig::default() };
        let journal = Journal::open(&self.env, &self.dir.path().join("journal"), config, &mut replay);
        let journal = journal.expect("readable");
        self.journal = Some(journal.clone());
        let meta: EmbeddedMeta = recovery.finish(&self.env, journal, MetaConfig::default());
        let meta: Arc<dyn Meta> = Arc::new(meta);
        Users::open(&self.env, meta).await.expect("readable")
    }
}

async fn plain(users: &Arc<Users>, user: &str, password: &str) -> Result<LoginStep, LoginError> {
    Login::begin(users, Mechanism::Plain).step(format!("\0{user}\0{password}").as_bytes()).await
}

fn mac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

/// Logs in as a client of SCRAM-SHA-256 does, which checks that the server knows the user as well.
async fn scram(users: &Arc<Users>, user: &str, password: &str) -> Result<Arc<str>, LoginError> {
    let mut login = Login::begin(users, Mechanism::ScramSha256);
    let bare = format!("n={user},r=clientnonce");
    let LoginStep::Challenge(challenge) = login.step(format!("n,,{bare}").as_bytes()).await? else {
        panic!("it is challenged first");
    };
    let challenge = String::from_utf8(challenge.to_vec()).expect("text");
    let parts: Vec<&str> = challenge.split(',').map(|part| &part[2..]).collect();
    assert!(parts[0].starts_with("clientnonce") && parts[0].len() > 30, "{challenge}");
    let salt = STANDARD.decode(parts[1]).expect("base64");
    let iterations: u32 = parts[2].parse().expect("a number");
    assert!(iterations >= 4_096, "Java takes no fewer");
    let mut last = mac(password.as_bytes(), &[&salt[..], &[0, 0, 0, 1]].concat());
    let mut salted = last.clone();
    for _ in 1..iterations {
        last = mac(password.as_bytes(), &last);
        salted.iter_mut().zip(&last).for_each(|(all, last)| *all ^= last);
    }
    let key = mac(&salted, b"Client Key");
    let unsigned = format!("c=biws,r={}", parts[0]);
    let signed = format!("{bare},{challenge},{unsigned}");
    let signature = mac(&Sha256::digest(&key), signed.as_bytes());
    let proof: Vec<u8> = key.iter().zip(&signature).map(|(key, signature)| key ^ signature).collect();
    let sent = format!("{unsigned},p={}", STANDARD.encode(proof));
    match login.step(sent.as_bytes()).await? {
        LoginStep::Done { user, answer } => {
            let server = STANDARD.encode(mac(&mac(&salted, b"Server Key"), signed.as_bytes()));
            assert_eq!(answer, format!("v={server}"), "the server knows the user");
            Ok(user)
        }
        LoginStep::Challenge(_) => panic!("one challenge is enough"),
    }
}

#[tokio::test]
async fn a_user_logs_in_by_each_mechanism_also_after_a_restart_and_with_no_other_password() {
    let mut world = World::new();
    let mut users = world.users().await;
    assert_eq!(users.set("orders", "correct horse").await, Ok(true));
    for round in 0..2 {
        if round == 1 {
            users = world.users().await;
        }
        assert_eq!(scram(&users, "orders", "correct horse").await.as_deref(), Ok("orders"));
        let done = plain(&users, "orders", "correct horse").await.expect("let in");
        assert!(matches!(done, LoginStep::Done { user, .. } if &*user == "orders"));
        let refused = LoginError::Refused { user: "orders".to_owned() };
        assert_eq!(scram(&users, "orders", "correct horsf").await, Err(refused.clone()));
        assert_eq!(plain(&users, "orders", "correct horsf").await, Err(refused));
        assert_eq!((users.stats().logins, users.stats().refused), (2, 2));
    }
}

#[tokio::test]
async fn nobody_learns_whether_a_user_exists() {
    let mut world = World::new();
    let users = world.users().await;
    users.set("orders", "correct horse").await.expect("new");
    let text = |error: LoginError| error.to_string();
    for user in ["orders", "nobody"] {
        let refused = plain(&users, user, "a wrong one").await.expect_err("refused");
        assert_eq!(text(refused), "there is no such user, or its password is another one");
        let refused = scram(&users, user, "a wrong one").await.expect_err("refused");
        assert_eq!(text(refused), "there is no such user, or its password is another one");
    }
    // The salt of a user that there is not is the same each time, as those of the others are.
    let salt = async |user: &str| {
        let mut login = Login::begin(&users, Mechanism::ScramSha512);
        match login.step(format!("n,,n={user},r=clientnonce").as_bytes()).await.expect("challenged") {
            LoginStep::Challenge(challenge) => {
                String::from_utf8_lossy(&challenge).split(',').nth(1).map(str::to_owned)
            }
            LoginStep::Done { .. } => panic!("nothing was proved"),
        }
    };
    assert_eq!(salt("nobody").await, salt("nobody").await);
    assert_ne!(salt("nobody").await, salt("nobody2").await);
}

#[tokio::test]
async fn a_changed_password_and_a_removed_user_hold_at_once_and_after_a_restart() {
    let mut world = World::new();
    let users = world.users().await;
    users.set("orders", "correct horse").await.expect("new");
    assert_eq!(users.set("orders", "battery staple").await, Ok(false));
    plain(&users, "orders", "correct horse").await.expect_err("the old one");
    plain(&users, "orders", "battery staple").await.expect("the new one");
    users.set("invoices", "correct horse").await.expect("new");
    assert_eq!(users.names(), ["invoices", "orders"]);
    users.remove("orders").await.expect("there");
    plain(&users, "orders", "battery staple").await.expect_err("gone");
    assert_eq!(users.remove("orders").await, Err(UserError::Unknown("orders".to_owned())));
    drop(users);
    assert_eq!(world.users().await.names(), ["invoices"]);
}

#[tokio::test]
async fn names_and_passwords_that_can_be_nobody_s_are_refused() {
    let mut world = World::new();
    let users = world.users().await;
    for name in ["", "a/b", "CN=orders", "a b", "anonymous", &"a".repeat(129)] {
        let error = users.set(name, "correct horse").await.expect_err(name).to_string();
        assert!(error.contains("a user has a name of"), "{error}");
    }
    for password in ["", "1234567", &"a".repeat(1_025), "with\0zero"] {
        let error = users.set("orders", password).await.expect_err(password).to_string();
        assert!(error.contains("8 to 1024 bytes"), "{error}");
    }
    assert!(users.names().is_empty());
}

#[tokio::test]
async fn what_makes_no_sense_ends_a_login_and_nothing_goes_on_behind_it() {
    let mut world = World::new();
    let users = world.users().await;
    users.set("orders", "correct horse").await.expect("new");
    let long = vec![b'a'; 5_000];
    for mechanism in Mechanism::ALL {
        for garbage in
            [&b""[..], &[0xff, 0xfe], &long, b"n,,", b"\0\0", b"a\0b\0c\0d", b"other\0orders\0correct horse"]
        {
            let mut login = Login::begin(&users, mechanism);
            let error = login.step(garbage).await.expect_err("garbage");
            assert!(matches!(error, LoginError::Malformed(_)), "{mechanism:?} {garbage:?}: {error}");
            let over = login.step(b"\0orders\0correct horse").await.expect_err("over");
            assert_eq!(over, LoginError::Malformed("it is over"));
        }
    }
    // A proof that is for another challenge is none.
    let mut login = Login::begin(&users, Mechanism::ScramSha256);
    login.step(b"n,,n=orders,r=clientnonce").await.expect("challenged");
    let error = login.step(b"c=biws,r=clientnonce0123,p=AAAA").await.expect_err("another one's");
    assert!(matches!(error, LoginError::Malformed(_)), "{error}");
}
