//! Whose the metadata is where ZooKeeper knows who comes.

use tailwater_access::{EngineLogin, SecretText};
use tailwater_meta_zookeeper::TurnWait;
use zookeeper_client::{Error as ZkError, SaslOptions};

use super::*;

const USERS: &str = "Server { org.apache.zookeeper.server.auth.DigestLoginModule required \
                     user_tailwater=\"secret\" user_stranger=\"strange\"; };\n";

fn place_of(server: &Cluster, user: &str, password: &str) -> MetadataUri {
    let login = EngineLogin { user: user.to_owned(), password: SecretText::new(password) };
    place(server, "mine").with_login(Some(login))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_user_has_made_no_other_user_reads_or_changes() {
    let dir = tempfile::tempdir().expect("a folder");
    std::fs::write(dir.path().join("jaas.conf"), USERS).expect("written");
    let server = Cluster::zookeeper_with(Some(dir.path().to_owned()));
    let mine = place_of(&server, "tailwater", "secret");
    let (membership, meta) = take_turn(&mine, "a").await;
    // One whole, and one in parts.
    meta.commit(put("stream/prices", "1")).await.expect("written");
    let large = vec![7; 1 << 20];
    meta.commit(put("stream/large", large.clone())).await.expect("written");

    let stranger = SaslOptions::digest_md5("stranger", "strange");
    let client = Client::connector().with_sasl(stranger).connect(&server.zookeeper).await.expect("let in");
    let (mut paths, mut at) = (vec!["/mine".to_owned()], 0);
    let known = Client::connector().with_sasl(SaslOptions::digest_md5("tailwater", "secret"));
    let known = known.connect(&server.zookeeper).await.expect("let in");
    while let Some(path) = paths.get(at).cloned() {
        at += 1;
        let Ok(children) = known.list_children(&path).await else { continue };
        paths.extend(children.into_iter().map(|name| format!("{path}/{name}")));
    }
    for expected in ["/mine/turn", "/mine/nodes/a", "/mine/keys", "/mine/parts", "/mine/active"] {
        assert!(paths.iter().any(|path| path == expected), "{expected} is not among {paths:?}");
    }
    for path in &paths {
        assert_eq!(client.get_data(path).await.map(|_| ()), Err(ZkError::NoAuth), "{path} is read");
        assert_eq!(client.list_children(path).await, Err(ZkError::NoAuth), "{path} is listed");
        assert_eq!(
            client.set_data(path, b"x", None).await.map(|_| ()),
            Err(ZkError::NoAuth),
            "{path} is set"
        );
        if path != "/mine" {
            assert_eq!(client.delete(path, None).await, Err(ZkError::NoAuth), "{path} is deleted");
        }
    }
    let theirs = place_of(&server, "stranger", "strange");
    let session = Duration::from_secs(2);
    // It waits for better times, and says why.
    let (told, mut says) = tokio::sync::mpsc::unbounded_channel();
    let told = |wait| told.send(wait).expect("it is listened to");
    let env = Env::real();
    let said = tokio::select! {
        joined = NodeMembership::join(&env, theirs, session, record("b"), false, told) => {
            panic!("a stranger has joined: {}", joined.is_ok())
        }
        said = says.recv() => said,
    };
    let Some(TurnWait::ForZooKeeper(why)) = said else { panic!("{said:?}") };
    assert!(why.contains("[zookeeper]"), "{why}");

    assert_eq!(value(&meta, "stream/large").await, Some(large.into()));
    membership.leave().await;
}
