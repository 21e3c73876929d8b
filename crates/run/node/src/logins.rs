//! Logins of those who make CALLs, and of those who read the node's own cells over TCP: the dialogue of SASL in CALLs
//! of the method [`Method::Login`].

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use tailwater_access::{ANONYMOUS, Peer};
use tailwater_env::{BoxFuture, Complaints, Env};
use tailwater_format::call::{
    CallErrorCode, CallRefusal, LoginAnswer, LoginMessage, Method, decode_call, encode_call,
};
use tailwater_login::{Login, LoginError, LoginStep, Mechanism, Users};
use tailwater_rma::{LoginDemand, LoginDialogue, LoginTurn, Refusal};

use crate::calls::refusal;
use crate::metrics::Meters;

/// How long who was refused waits to be told, as in Kafka's protocol: guesses are not free.
const REFUSED_AFTER: Duration = Duration::from_millis(100);

const _: () = {
    assert!(Method::Login.number() == tailwater_rma::limits::LOGIN_METHOD);
    assert!(tailwater_format::limits::LOGIN_BYTES_MAX == tailwater_rma::limits::LOGIN_BYTES_MAX);
    assert!(tailwater_login::limits::MESSAGE_BYTES_MAX < tailwater_format::limits::LOGIN_BYTES_MAX);
};

/// Who may log in by CALLs, and who has to.
pub struct CallLogins {
    env: Env,
    /// Whether those have to whom nobody knows better.
    is_required: bool,
    meters: Arc<Meters>,
    /// Known once the metadata can be read: cells are there before.
    users: OnceLock<Arc<Users>>,
    complaints: Complaints,
}

impl std::fmt::Debug for CallLogins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallLogins").field("is_required", &self.is_required).finish_non_exhaustive()
    }
}

impl CallLogins {
    /// Logins that are required, or may be made, of users that are told later.
    pub(crate) fn new(env: &Env, is_required: bool, meters: Arc<Meters>) -> Arc<Self> {
        let (users, complaints) = (OnceLock::new(), Complaints::default());
        Arc::new(Self { env: env.clone(), is_required, meters, users, complaints })
    }

    /// These are the users.
    pub(crate) fn begin_with(&self, users: &Arc<Users>) {
        // A node starts once.
        let _ = self.users.set(Arc::clone(users));
    }

    /// What is wanted of a peer that has not logged in. A peer that has shown a certificate, or is a process of this
    /// host, is known by that.
    pub(crate) fn demand(&self, peer: &Peer) -> LoginDemand {
        let why = "this listener wants a login before anything else: name a user with --login NAME and \
                   --login-password-file FILE, or a token with --login-token-file FILE; in the client library, \
                   `login` of `ClientConfig`";
        let refused = CallRefusal::new(CallErrorCode::NotAuthorized, why.to_owned());
        LoginDemand {
            is_required: self.is_required && &*peer.principal == ANONYMOUS,
            refusal: refusal(refused),
        }
    }

    /// Begins the login of `peer`.
    ///
    /// # Errors
    /// The node has just started, and does not know its users yet.
    pub(crate) fn begin(
        self: &Arc<Self>,
        peer: &Peer,
        is_private: bool,
    ) -> Result<Box<dyn LoginDialogue>, Refusal> {
        let Some(users) = self.users.get() else {
            let why = "the node starts, and does not know its users yet: try again".to_owned();
            return Err(refusal(CallRefusal::new(CallErrorCode::Unavailable, why)));
        };
        // Processes of this host have an address together, whichever way they come.
        let address = peer.ip().unwrap_or(Ipv4Addr::LOCALHOST.into());
        let logins = Arc::clone(self);
        let users = Arc::clone(users);
        Ok(Box::new(CallerLogin {
            logins,
            users,
            from: peer.address.clone(),
            address,
            is_private,
            begun: None,
        }))
    }
}

/// A login of one connection.
struct CallerLogin {
    logins: Arc<CallLogins>,
    users: Arc<Users>,
    /// The peer's address, as it is called.
    from: String,
    address: IpAddr,
    /// Nobody else reads what goes over the connection.
    is_private: bool,
    begun: Option<(Mechanism, Login)>,
}

impl LoginDialogue for CallerLogin {
    fn step(mut self: Box<Self>, message: Bytes) -> BoxFuture<'static, LoginTurn> {
        Box::pin(async move {
            self.logins.meters.of(Method::Login).calls.fetch_add(1, Ordering::Relaxed);
            match self.try_step(message).await {
                Ok(LoginStep::Challenge(message)) => {
                    let answer = encode_call(&LoginAnswer { message, is_done: false });
                    LoginTurn::Challenge(answer, self)
                }
                Ok(LoginStep::Done { user, answer, .. }) => self.done(&user, answer),
                Err(why) => self.refused(why).await,
            }
        })
    }
}

/// Why a message of a login is not gone on with.
enum LoginRefused {
    /// It is none that is taken.
    Strange(String),
    /// Who sent it is not let in.
    Login(LoginError),
}

impl CallerLogin {
    async fn try_step(&mut self, message: Bytes) -> Result<LoginStep, LoginRefused> {
        let strange = |why: String| Err(LoginRefused::Strange(why));
        let LoginMessage { mechanism: name, message } = match decode_call(message) {
            Ok(decoded) => decoded,
            Err(error) => return strange(error.to_string()),
        };
        let wanted = Mechanism::from_name(&name).filter(|wanted| self.is_private || !wanted.shows_password());
        let Some(wanted) = wanted else {
            let offered = Mechanism::ALL.into_iter().filter(|one| self.is_private || !one.shows_password());
            let offered: Vec<_> = offered.map(Mechanism::name).collect();
            let name: String = name.chars().take(32).collect();
            return strange(format!(
                "nobody logs in by {name:?} over this connection: use {}; PLAIN and tokens are taken in TLS only",
                offered.join(" or ")
            ));
        };
        let (begun, login) =
            self.begun.get_or_insert_with(|| (wanted, Login::begin(&self.users, wanted, Some(self.address))));
        if *begun != wanted {
            return strange("a login goes on by the mechanism that it began with".to_owned());
        }
        login.step(&message).await.map_err(LoginRefused::Login)
    }

    fn done(&self, user: &str, message: Bytes) -> LoginTurn {
        let session = self.begun.as_ref().and_then(|(_, login)| login.session()).cloned();
        let Some(session) = session else {
            let why = "the login came to nothing".to_owned();
            return LoginTurn::Refused(refusal(CallRefusal::new(CallErrorCode::Internal, why)));
        };
        tracing::debug!(peer = self.from, user, "a client has logged in");
        let answer = encode_call(&LoginAnswer { message, is_done: true });
        LoginTurn::Done { answer, peer: Peer::of(self.from.clone(), user), over: Box::pin(session.over()) }
    }

    async fn refused(&self, why: LoginRefused) -> LoginTurn {
        let (user, why, code) = match &why {
            LoginRefused::Strange(why) => (None, why.clone(), CallErrorCode::Malformed),
            LoginRefused::Login(error) => {
                let user = match error {
                    LoginError::Refused { user } => Some(user.as_str()),
                    LoginError::Malformed(_) | LoginError::NoToken | LoginError::TooMany => None,
                };
                (user, error.to_string(), CallErrorCode::NotAuthorized)
            }
        };
        let CallLogins { env, meters, complaints, .. } = &*self.logins;
        if let Some(left_out) = complaints.admit(env.now(), "login refused") {
            tracing::warn!(peer = self.from, user, error = why, left_out, "a client can't log in");
        }
        meters.of(Method::Login).refused.fetch_add(1, Ordering::Relaxed);
        env.sleep(REFUSED_AFTER).await;
        LoginTurn::Refused(refusal(CallRefusal::new(code, why)))
    }
}
