//! One connection's login, beside its session: what has to wait is done in tasks of the runtime.

use std::sync::Arc;

use tailwater_access::{AddressPlace, Peer};
use tailwater_env::Task;

use crate::limits::LOGIN_MESSAGES_MAX;
use crate::server::mailbox::{Mailbox, Message};
use crate::server::session::Call;
use crate::server::shared::EngineShared;
use crate::service::{LoginDialogue, REFUSED_ABANDONED, Refusal};

/// What an engine keeps of a connection's login.
pub(crate) struct ConnectionLogin {
    /// Nobody else reads what goes over the connection.
    is_private: bool,
    state: LoginProgress,
    /// Messages of it so far.
    messages: usize,
    /// Its place among those that have to log in.
    place: Option<AddressPlace>,
}

enum LoginProgress {
    NotBegun,
    GoesOn(Box<dyn LoginDialogue>),
    /// A message of it is being looked at.
    Waits,
    /// The task waits for its end.
    Done {
        _over: Task,
    },
    Refused,
}

impl ConnectionLogin {
    /// That of a connection which begins; `None` if there are too many of its address that have to log in.
    pub(crate) fn of(shared: &EngineShared, peer: &Peer, is_private: bool) -> Option<Self> {
        let has_to = shared.service.login_demand(peer).is_some_and(|demand| demand.is_required);
        let place = match peer.ip().filter(|_| has_to) {
            Some(address) => Some(shared.strangers.take(address, shared.config.strangers_max)?),
            None => None,
        };
        Some(Self { is_private, state: LoginProgress::NotBegun, messages: 0, place })
    }

    /// Takes a message of the login of the connection `id`, whose answer comes through `mailbox`.
    ///
    /// # Errors
    /// Why not, for the client.
    pub(crate) fn take(
        &mut self,
        shared: &Arc<EngineShared>,
        mailbox: &Arc<Mailbox>,
        (peer, id): (&Peer, u64),
        call: Call,
    ) -> Result<(), Refusal> {
        self.messages += 1;
        let dialogue = match std::mem::replace(&mut self.state, LoginProgress::Refused) {
            _ if self.messages > LOGIN_MESSAGES_MAX => return Err(refusal("a login has fewer messages")),
            LoginProgress::NotBegun => match shared.service.begin_login(peer, self.is_private) {
                Ok(dialogue) => dialogue,
                Err(refusal) => {
                    // It may try again, as long as it has time.
                    self.state = LoginProgress::NotBegun;
                    return Err(refusal);
                }
            },
            LoginProgress::GoesOn(dialogue) => dialogue,
            over => {
                self.state = over;
                return Err(refusal("there is no login that goes on: connect again"));
            }
        };
        self.state = LoginProgress::Waits;
        let (mailbox, request) = (Arc::clone(mailbox), call.request);
        let task = async move {
            let turn = dialogue.step(call.payload).await;
            mailbox.send(Message::Login { connection: id, request, turn });
        };
        shared.env.spawn("rma-login", task).detach();
        Ok(())
    }

    /// The client was sent a challenge.
    pub(crate) fn goes_on(&mut self, dialogue: Box<dyn LoginDialogue>) {
        self.state = LoginProgress::GoesOn(dialogue);
    }

    /// The client is known, until the task has ended.
    pub(crate) fn is_done(&mut self, over: Task) {
        self.state = LoginProgress::Done { _over: over };
        self.place = None;
    }

    /// The client is not let in.
    pub(crate) fn is_refused(&mut self) {
        self.state = LoginProgress::Refused;
    }
}

fn refusal(why: &str) -> Refusal {
    Refusal { code: REFUSED_ABANDONED, message: why.to_owned() }
}
