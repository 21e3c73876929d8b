//! CALLs to a node, over a connection that is made again when it is lost.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tailwater_env::Env;
use tailwater_format::call::{CallErrorCode, CallMessage, CallRefusal, Method, decode_call, encode_call};
use tailwater_login::ClientLogin;
use tailwater_rma::{Address, CallError, ConnectError, Connection, LoginWish, connect_as};
use tailwater_tls::Dialer;

use crate::Error;
use crate::limits::{CALL_DEADLINE, RECONNECT_PAUSE_MAX, RECONNECT_PAUSE_MIN};
use crate::login::CallLogin;

/// A node, by its address.
pub(crate) struct Node {
    env: Env,
    address: Address,
    dialer: Dialer,
    login: Option<CallLogin>,
    state: Mutex<ConnectionState>,
    /// Held while connecting, so that many callers make one connection.
    connecting: tokio::sync::Mutex<()>,
}

struct ConnectionState {
    connection: Option<Arc<dyn Connection>>,
    pause: Duration,
    /// How many attempts to connect failed, and why the last one did.
    failures: u64,
    failed: Option<Error>,
}

impl Node {
    pub(crate) fn new(env: Env, address: Address, dialer: Dialer, login: Option<ClientLogin>) -> Self {
        let state =
            ConnectionState { connection: None, pause: RECONNECT_PAUSE_MIN, failures: 0, failed: None };
        let (login, connecting) = (login.map(CallLogin), tokio::sync::Mutex::new(()));
        Self { env, address, dialer, login, state: Mutex::new(state), connecting }
    }

    /// What it is logged in with, and its cells, if they take logins.
    pub(crate) fn login(&self) -> Option<&CallLogin> {
        self.login.as_ref()
    }

    /// What makes the connections to it, and to its cells.
    pub(crate) fn dialer(&self) -> &Dialer {
        &self.dialer
    }

    pub(crate) fn env(&self) -> &Env {
        &self.env
    }

    /// Asks the node; connects if need be, but does not try twice: what was under way may have been done.
    pub(crate) async fn call<Q: CallMessage, A: CallMessage>(
        &self,
        method: Method,
        request: &Q,
    ) -> Result<A, Error> {
        let answer = self.call_bytes(method, vec![encode_call(request)]).await?;
        Ok(decode_call(answer)?)
    }

    /// The same for a request in pieces, which are sent from where they are.
    pub(crate) async fn call_with_pieces<A: CallMessage>(
        &self,
        method: Method,
        pieces: Vec<Bytes>,
    ) -> Result<A, Error> {
        Ok(decode_call(self.call_bytes(method, pieces).await?)?)
    }

    /// The same, where the answer is no message.
    pub(crate) async fn call_bytes(&self, method: Method, pieces: Vec<Bytes>) -> Result<Bytes, Error> {
        let connection = self.connection().await?;
        let called = connection.call_with_pieces(method.number(), pieces);
        let answer = self.env.timeout(CALL_DEADLINE, called).await;
        match answer {
            None => {
                // Its network may be gone without a word. Others that wait for an answer keep it.
                self.forget(&connection);
                Err(Error::Deadline { address: self.address.to_string(), deadline: CALL_DEADLINE })
            }
            Some(Ok(answer)) => Ok(answer),
            Some(Err(CallError::Lost(lost))) => {
                self.forget(&connection);
                Err(self.unreachable(lost.reason))
            }
            Some(Err(CallError::Overloaded { peer })) => {
                let message = format!("{peer} has too much to do");
                Err(CallRefusal::new(CallErrorCode::Overloaded, message).into())
            }
            Some(Err(CallError::Refused { code, message })) => {
                Err(CallRefusal::new(CallErrorCode::from_number(code), message).into())
            }
        }
    }

    async fn connection(&self) -> Result<Arc<dyn Connection>, Error> {
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        let failures = self.state.lock().failures;
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(connection) = self.connected() {
            return Ok(connection);
        }
        {
            // An attempt that failed meanwhile failed for all who waited for it: none waits for several.
            let state = self.state.lock();
            if state.failures != failures
                && let Some(error) = &state.failed
            {
                return Err(error.clone());
            }
        }
        let login = self.login.as_ref().map(|login| LoginWish { login, or_without: false });
        match connect_as(&self.env, &self.address, &self.dialer, login).await {
            Ok(connection) => {
                let mut state = self.state.lock();
                state.pause = RECONNECT_PAUSE_MIN;
                state.connection = Some(Arc::clone(&connection));
                Ok(connection)
            }
            Err(error) => {
                let error = match error {
                    ConnectError::Secure { address, reason } => {
                        Error::Secure { address: address.to_string(), reason }
                    }
                    ConnectError::Login { address, code, reason }
                        if !code.is_some_and(|code| CallErrorCode::from_number(code).is_retriable()) =>
                    {
                        Error::Login { address: address.to_string(), reason }
                    }
                    other => self.unreachable(other.to_string()),
                };
                // While the lock is held, so that a dead node is not hammered.
                let pause = self.state.lock().pause;
                let jitter = self.env.random_below(pause.as_micros() as u64 / 2 + 1);
                self.env.sleep(pause / 2 + Duration::from_micros(jitter)).await;
                let mut state = self.state.lock();
                state.pause = (state.pause * 2).min(RECONNECT_PAUSE_MAX);
                state.failures += 1;
                state.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    fn connected(&self) -> Option<Arc<dyn Connection>> {
        let mut state = self.state.lock();
        if state.connection.as_ref().is_some_and(|connection| connection.lost().is_some()) {
            state.connection = None;
        }
        state.connection.clone()
    }

    fn forget(&self, lost: &Arc<dyn Connection>) {
        let mut state = self.state.lock();
        if state.connection.as_ref().is_some_and(|connection| Arc::ptr_eq(connection, lost)) {
            state.connection = None;
        }
    }

    fn unreachable(&self, reason: String) -> Error {
        Error::Unreachable { address: self.address.to_string(), reason }
    }
}
