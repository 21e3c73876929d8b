//! Users over real metadata, and clients that log in as them.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use tailwater_access::SecretText;
use tailwater_env::Env;
use tailwater_journal::Journal;
use tailwater_login::{
    ClientLogin, Login, LoginError, LoginSession, LoginStep, Mechanism, SaltedPassword, ScramChange,
    UserError, Users,
};
use tailwater_meta::Meta;

struct World {
    env: Env,
    dir: tempfile::TempDir,
    /// What is open of it.
    journal: Option<Journal>,
    meta: Option<Arc<dyn Meta>>,
}

impl World {
    fn new() -> Self {
        Self { env: Env::real(), dir: tempfile::tempdir().expect("a directory"), journal: None, meta: None }
    }

    /// The users, as a node that starts finds them. One that ran has ended.
    async fn users(&mut self) -> Arc<Users> {
        self.meta = None;
        if let Some(journal) = self.journal.take() {
            journal.close().await.expect("durable");
        }
        let (journal, meta) = tailwater_meta::testing::open(&self.env, self.dir.path());
        (self.journal, self.meta) = (Some(journal), Some(Arc::clone(&meta)));
        Users::open(&self.env, meta).await.expect("readable")
    }

    /// The same, as another node of the metadata finds them beside the one that runs.
    async fn users_elsewhere(&self) -> Arc<Users> {
        let meta = self.meta.clone().expect("one runs");
        Users::open(&self.env, meta).await.expect("readable")
    }
}

async fn plain(users: &Arc<Users>, user: &str, password: &str) -> Result<LoginStep, LoginError> {
    Login::begin(users, Mechanism::Plain, None).step(format!("\0{user}\0{password}").as_bytes()).await
}

fn mac(key: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("any key");
    mac.update(bytes);
    mac.finalize().into_bytes().to_vec()
}

/// Logs in as a client of SCRAM-SHA-256 does, which checks that the server knows the user as well.
async fn scram(users: &Arc<Users>, user: &str, password: &str) -> Result<Arc<str>, LoginError> {
    let mut login = Login::begin(users, Mechanism::ScramSha256, None);
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
        LoginStep::Done { user, answer, .. } => {
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
    let salt = async |users: &Arc<Users>, user: &str| {
        let mut login = Login::begin(users, Mechanism::ScramSha512, None);
        match login.step(format!("n,,n={user},r=clientnonce").as_bytes()).await.expect("challenged") {
            LoginStep::Challenge(challenge) => {
                String::from_utf8_lossy(&challenge).split(',').nth(1).map(str::to_owned)
            }
            LoginStep::Done { .. } => panic!("nothing was proved"),
        }
    };
    let nobody = salt(&users, "nobody").await;
    assert_eq!(salt(&users, "nobody").await, nobody);
    assert_ne!(salt(&users, "nobody2").await, nobody);
    drop(users);
    let users = world.users().await;
    assert_eq!(salt(&users, "nobody").await, nobody, "nor by a restart");
}

#[tokio::test]
async fn a_password_that_was_hashed_elsewhere_is_one_for_its_mechanism_alone() {
    let mut world = World::new();
    let users = world.users().await;
    let mut salted = [0; 32];
    pbkdf2::pbkdf2_hmac::<Sha256>(b"correct horse", b"a longer salt than ours", 4_096, &mut salted);
    let change = |iterations| ScramChange {
        mechanism: Mechanism::ScramSha256,
        to: Some(SaltedPassword {
            iterations,
            salt: b"a longer salt than ours".to_vec(),
            salted: salted.to_vec(),
        }),
    };
    for iterations in [0, 4_095, 16_385] {
        let error = users.set_scram("orders", vec![change(iterations)]).await.expect_err("too few or many");
        assert!(error.to_string().contains("4096 to 16384 times"), "{error}");
    }
    users.set_scram("orders", vec![change(4_096)]).await.expect("new");
    drop(users);
    let users = world.users().await;
    assert_eq!(users.scram("orders"), Some(vec![(Mechanism::ScramSha256, 4_096)]));
    assert_eq!(scram(&users, "orders", "correct horse").await.as_deref(), Ok("orders"));
    plain(&users, "orders", "correct horse").await.expect("the same password");
    let remove = |mechanism| vec![ScramChange { mechanism, to: None }];
    let error = users.set_scram("orders", remove(Mechanism::ScramSha512)).await;
    assert_eq!(error, Err(UserError::NoSuchMechanism("SCRAM-SHA-512".to_owned())));
    users.guard(|left| if left.is_empty() { Err("one has to stay".to_owned()) } else { Ok(()) });
    let error = users.set_scram("orders", remove(Mechanism::ScramSha256)).await;
    assert_eq!(error, Err(UserError::Needed("one has to stay".to_owned())));
    users.set("invoices", "correct horse").await.expect("new");
    users.set_scram("orders", remove(Mechanism::ScramSha256)).await.expect("there");
    assert_eq!(users.names(), ["invoices"]);
}

#[tokio::test]
async fn a_token_stands_for_itself_until_it_is_removed_or_its_time_is_over() {
    let mut world = World::new();
    let users = world.users().await;
    let far = world.env.wall_ms() + 1_000_000_000;
    let text = users.tokens().create("ci", Some(far)).await.expect("new");
    assert!(text.starts_with("tw.ci.") && text.len() == 49, "{text}");
    users.tokens().create("ci", None).await.expect_err("there is one");
    users.tokens().create("past", Some(1)).await.expect_err("over");
    drop(users);
    let users = world.users().await;
    let bearer = async |token: &str| {
        let mut login = Login::begin(&users, Mechanism::OAuthBearer, None);
        login.step(format!("n,,\x01auth=Bearer {token}\x01\x01").as_bytes()).await
    };
    for stepped in [bearer(&text).await, plain(&users, "token:ci", &text).await] {
        let LoginStep::Done { user, until_ms, .. } = stepped.expect("known") else {
            panic!("nothing is asked")
        };
        assert_eq!((&*user, until_ms), ("token:ci", Some(far)));
    }
    // A token's last sign may be any of sixteen: another one has to take its place.
    let last = if text.ends_with('A') { 'E' } else { 'A' };
    let wrong = format!("{}{last}", &text[..text.len() - 1]);
    for token in ["", "tw.ci.", "tw.other.x", &wrong, &format!("{text}x"), &text[3..]] {
        assert_eq!(bearer(token).await, Err(LoginError::NoToken), "{token}");
    }
    assert_eq!(plain(&users, "token:other", &text).await, Err(LoginError::NoToken));
    plain(&users, "ci", &text).await.expect_err("that is a user");
    users.tokens().remove("ci").await.expect("there");
    assert_eq!(bearer(&text).await, Err(LoginError::NoToken));
    assert_eq!(users.tokens().remove("ci").await, Err(UserError::UnknownToken("ci".to_owned())));
}

#[tokio::test]
async fn an_address_that_guesses_is_not_listened_to_for_a_while_and_another_one_is() {
    let mut world = World::new();
    let users = world.users().await;
    users.set("orders", "correct horse").await.expect("new");
    let from = async |address: [u8; 4], password: &str| {
        let mut login = Login::begin(&users, Mechanism::Plain, Some(address.into()));
        login.step(format!("\0orders\0{password}").as_bytes()).await
    };
    let mut answered = 0;
    while from([192, 0, 2, 1], "a guess").await != Err(LoginError::TooMany) {
        answered += 1;
        assert!(answered < 1_000, "a thousand guesses");
    }
    from([192, 0, 2, 2], "correct horse").await.expect("another address");
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
            let mut login = Login::begin(&users, mechanism, None);
            let error = login.step(garbage).await.expect_err("garbage");
            assert!(matches!(error, LoginError::Malformed(_)), "{mechanism:?} {garbage:?}: {error}");
            let over = login.step(b"\0orders\0correct horse").await.expect_err("over");
            assert_eq!(over, LoginError::Malformed("it is over"));
        }
    }
    // A proof that is for another challenge is none.
    let mut login = Login::begin(&users, Mechanism::ScramSha256, None);
    login.step(b"n,,n=orders,r=clientnonce").await.expect("challenged");
    let error = login.step(b"c=biws,r=clientnonce0123,p=AAAA").await.expect_err("another one's");
    assert!(matches!(error, LoginError::Malformed(_)), "{error}");
}

/// Who has logged in, and how long that is good.
async fn session(users: &Arc<Users>, mechanism: Mechanism, message: &str) -> LoginSession {
    let mut login = Login::begin(users, mechanism, None);
    login.step(message.as_bytes()).await.expect("let in");
    login.session().expect("it is done").clone()
}

#[tokio::test]
async fn a_session_is_over_when_its_user_or_its_token_is_removed_and_not_when_another_one_is() {
    let mut world = World::new();
    let users = world.users().await;
    for user in ["orders", "invoices"] {
        users.set(user, "correct horse").await.expect("new");
    }
    let orders = session(&users, Mechanism::Plain, "\0orders\0correct horse").await;
    users.set("orders", "battery staple").await.expect("changed");
    users.remove("invoices").await.expect("there");
    assert!(!orders.is_over(), "another password, and another user");
    let (removed, removing) = (orders.clone().removed(), users.remove("orders"));
    tokio::join!(removed, removing).1.expect("there");
    users.set("orders", "battery staple").await.expect("new");
    assert!(orders.is_over() && orders.is_removed(), "who comes under its name later is another user");

    let token = users.tokens().create("ci", None).await.expect("a token");
    let message = format!("n,,\x01auth=Bearer {token}\x01\x01");
    let ci = session(&users, Mechanism::OAuthBearer, &message).await;
    assert!(!ci.is_over());
    tokio::join!(ci.clone().over(), users.tokens().remove("ci")).1.expect("there");
    users.tokens().create("ci", None).await.expect("a token");
    assert!(ci.is_removed(), "another token");
}

#[tokio::test]
async fn a_session_is_over_when_the_time_of_its_token_is() {
    let mut world = World::new();
    let users = world.users().await;
    let mut ms = 300;
    let ci = loop {
        let until_ms = Some(world.env.wall_ms() + ms);
        if let Ok(token) = users.tokens().create(&format!("ci-{ms}"), until_ms).await {
            let mut login = Login::begin(&users, Mechanism::OAuthBearer, None);
            let message = format!("n,,\x01auth=Bearer {token}\x01\x01");
            if login.step(message.as_bytes()).await.is_ok() {
                break login.session().expect("it is done").clone();
            }
        }
        // Its time was over before it was kept, or shown.
        ms *= 4;
    };
    ci.clone().over().await;
    assert!(ci.is_over() && !ci.is_removed());
}

#[tokio::test]
async fn a_token_that_is_ended_is_good_for_nothing_and_stays_until_it_is_removed() {
    let mut world = World::new();
    let users = world.users().await;
    let token = users.tokens().create("ci", None).await.expect("new");
    assert_eq!(users.tokens().is_over("ci").await, Ok(None));
    let elsewhere = world.users_elsewhere().await;
    let message = format!("n,,\x01auth=Bearer {token}\x01\x01");
    let ci = session(&users, Mechanism::OAuthBearer, &message).await;
    users.tokens().end("ci").await.expect("there");
    assert!(ci.is_removed() && users.tokens().bearer(&token).is_none());
    assert_eq!(users.tokens().expired(), ["ci"]);
    assert!(users.tokens().is_over("ci").await.expect("answered").is_some());
    elsewhere.tokens().create("ci", None).await.expect_err("there is one of that name");
    // What it knows is the token before its end.
    elsewhere.tokens().remove("ci").await.expect_err("another one by now");
    assert_eq!(users.tokens().remove_expired("ci").await, Ok(true));
    assert_eq!(users.tokens().is_over("ci").await, Ok(None));
    users.tokens().create("ci", None).await.expect("new");
}

#[tokio::test]
async fn a_token_whose_time_is_over_stays_where_another_node_has_made_it_anew() {
    let mut world = World::new();
    let users = world.users().await;
    let mut ms = 100;
    let soon = loop {
        let soon = world.env.wall_ms() + ms;
        let ci = users.tokens().create("ci", Some(soon)).await;
        let old = users.tokens().create("old", Some(soon)).await;
        if ci.is_ok() && old.is_ok() {
            break soon;
        }
        // It was over before both were kept.
        for name in ["ci", "old"] {
            let _ = users.tokens().remove(name).await;
        }
        ms *= 4;
    };
    let elsewhere = world.users_elsewhere().await;
    while world.env.wall_ms() <= soon {
        tokio::task::yield_now().await;
    }
    let other = users.tokens().create("other", None).await.expect("new");
    let refused = elsewhere.tokens().create("other", None).await.expect_err("it is there").to_string();
    assert!(refused.contains("another node") && users.tokens().bearer(&other).is_some(), "{refused}");
    elsewhere.tokens().remove("ci").await.expect("there");
    let anew = elsewhere.tokens().create("ci", None).await.expect("new");
    assert_eq!(users.tokens().expired(), ["ci", "old"]);
    assert_eq!(users.tokens().remove_expired("ci").await, Ok(false));
    assert_eq!(users.tokens().remove_expired("old").await, Ok(true));
    assert!(users.tokens().expired().is_empty());
    assert!(users.tokens().bearer(&anew).is_some() && elsewhere.tokens().bearer(&anew).is_some());
}

#[tokio::test]
async fn of_the_last_two_users_that_two_nodes_remove_at_once_one_stays_and_who_is_gone_does_not_come_back() {
    let mut world = World::new();
    let here = world.users().await;
    for round in 0..8 {
        for name in ["ann", "ben"] {
            here.set(name, "password").await.expect("kept");
        }
        let elsewhere = world.users_elsewhere().await;
        for users in [&here, &elsewhere] {
            users.guard(|left| if left.is_empty() { Err("one has to stay".to_owned()) } else { Ok(()) });
        }
        // Neither has heard of what the other one does.
        let (one, two) = futures::join!(here.remove("ann"), elsewhere.remove("ben"));
        assert!(one.is_ok() != two.is_ok(), "round {round}: {one:?} {two:?}");
        let left = world.users_elsewhere().await.names();
        assert_eq!(left, [if one.is_ok() { "ben" } else { "ann" }]);
    }

    here.set("ann", "password").await.expect("kept");
    let elsewhere = world.users_elsewhere().await;
    here.set("ben", "password").await.expect("kept");
    here.remove("ann").await.expect("there");
    let change = ScramChange { mechanism: Mechanism::ScramSha256, to: None };
    let gone = elsewhere.set_scram("ann", vec![change]).await;
    assert_eq!(gone, Err(UserError::Unknown("ann".to_owned())), "it is not made of what is left");
    assert_eq!(elsewhere.remove("ann").await, Err(UserError::Unknown("ann".to_owned())));
    assert_eq!(elsewhere.set("ann", "another one").await, Ok(true), "a new one");
}

#[tokio::test]
async fn removals_by_other_nodes_are_followed_also_beside_a_user_that_a_later_version_has_written() {
    let mut world = World::new();
    let here = world.users().await;
    for name in ["ann", "ben"] {
        here.set(name, "password").await.expect("kept");
    }
    let elsewhere = world.users_elsewhere().await;
    let _following = elsewhere.follow().await.expect("readable");
    here.tokens().create("ci", None).await.expect("new");
    let meta = world.meta.clone().expect("one runs");
    let put = |key: &str| tailwater_meta::Op::Put {
        key: key.to_owned(),
        value: vec![255].into(),
        expect: tailwater_meta::Expect::Any,
    };
    meta.commit(vec![put("login/user/ann"), put("login/token/later")]).await.expect("put");
    here.remove("ben").await.expect("there");
    while elsewhere.names() != ["ann"] || elsewhere.tokens().list().len() != 1 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_sessions_of_a_user_whom_another_node_removes_and_makes_again_at_once_are_over() {
    let mut world = World::new();
    let here = world.users().await;
    here.set("orders", "correct horse").await.expect("new");
    let before = session(&here, Mechanism::Plain, "\0orders\0correct horse").await;
    let elsewhere = world.users_elsewhere().await;
    elsewhere.set("orders", "battery staple").await.expect("changed");
    drop(here.follow().await.expect("readable"));
    assert!(!before.is_over(), "it has another password");

    elsewhere.remove("orders").await.expect("there");
    assert_eq!(elsewhere.set("orders", "battery staple").await, Ok(true), "a new one");
    // This node hears of both at once.
    let (over, following) = (before.clone().over(), here.follow());
    let (_, following) = tokio::join!(over, following);
    drop(following.expect("readable"));
    assert!(before.is_removed(), "another user");
    let anew = session(&here, Mechanism::Plain, "\0orders\0battery staple").await;
    here.set("orders", "correct horse").await.expect("changed");
    drop((here.follow().await.expect("readable"), elsewhere.follow().await.expect("readable")));
    assert!(!anew.is_over());
}

#[tokio::test]
async fn a_user_and_a_token_that_can_not_be_read_keep_nobody_else_out_and_may_be_put_in_order() {
    let mut world = World::new();
    let here = world.users().await;
    for name in ["ann", "ben", "cid"] {
        here.set(name, "password").await.expect("new");
    }
    let token = here.tokens().create("ci", None).await.expect("a token");
    let meta = world.meta.clone().expect("one runs");
    let put = |key: &str| tailwater_meta::Op::Put {
        key: key.to_owned(),
        value: vec![255].into(),
        expect: tailwater_meta::Expect::Any,
    };
    meta.commit(vec![put("login/user/ann"), put("login/user/ben"), put("login/token/later")])
        .await
        .expect("put");
    let anew = world.users_elsewhere().await;
    assert_eq!(anew.names(), ["cid"]);
    assert!(plain(&anew, "ann", "password").await.is_err());
    plain(&anew, "cid", "password").await.expect("let in");
    assert!(anew.tokens().bearer(&token).is_some());
    assert_eq!(anew.set("ann", "another one").await, Ok(false), "there was one");
    anew.remove("ben").await.expect("there was one");
    plain(&anew, "ann", "another one").await.expect("let in");
    assert_eq!(world.users_elsewhere().await.names(), ["ann", "cid"]);
}

/// A login of ours on both sides: who the server takes the client for, once the client has seen that it is the server.
async fn both_sides(env: &Env, users: &Arc<Users>, login: &ClientLogin) -> Result<Arc<str>, LoginError> {
    let mut client = login.begin(env, true).expect("nobody listens");
    let mut server = Login::begin(users, login.mechanism(), None);
    let mut said = Vec::new();
    loop {
        let message = client.next(&said).expect("the server is the right one").expect("it is not done");
        match server.step(&message).await? {
            LoginStep::Challenge(challenge) => said = challenge.to_vec(),
            LoginStep::Done { user, answer, .. } => {
                assert_eq!(client.next(&answer), Ok(None), "the client knows that it is in");
                return Ok(user);
            }
        }
    }
}

#[tokio::test]
async fn a_client_of_ours_logs_in_by_each_mechanism_and_not_with_another_secret() {
    let mut world = World::new();
    let users = world.users().await;
    for user in ["alice", "bob@example"] {
        users.set(user, "correct horse").await.expect("added");
        for mechanism in [Mechanism::Plain, Mechanism::ScramSha256, Mechanism::ScramSha512] {
            let of = |password: &str| {
                ClientLogin::of_user(user, SecretText::new(password), mechanism).expect("a login")
            };
            let known = both_sides(&world.env, &users, &of("correct horse")).await;
            assert_eq!(known.as_deref(), Ok(user), "{mechanism:?}");
            let wrong = both_sides(&world.env, &users, &of("wrong horse")).await;
            assert_eq!(wrong, Err(LoginError::Refused { user: user.to_owned() }), "{mechanism:?}");
        }
    }
    let token = users.tokens().create("ci", None).await.expect("created");
    let of = |token: &str| ClientLogin::of_token(SecretText::new(token)).expect("a token");
    assert_eq!(both_sides(&world.env, &users, &of(&token)).await.as_deref(), Ok("token:ci"));
    let wrong = both_sides(&world.env, &users, &of("tw.ci.wrong")).await;
    assert_eq!(wrong, Err(LoginError::NoToken));
}
