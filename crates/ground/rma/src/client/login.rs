//! The client's side of a login, before anything else goes over a connection.

use std::os::fd::OwnedFd;

use bytes::Bytes;
use tailwater_env::Env;

use crate::client::stream::Stream;
use crate::client::{Failure, ask, say_hello};
use crate::frame::{self, CallAnswer, Decoder, FrameKind, HelloReply};
use crate::limits::{LOGIN_BYTES_MAX, LOGIN_METHOD};

/// What an application logs in with. It has one for all its connections.
pub trait ServerLogin: Send + Sync + 'static {
    /// Begins a login. `is_private`: nobody else reads what goes over the connection.
    ///
    /// # Errors
    /// Why it can't be shown there, for a person.
    fn begin(&self, env: &Env, is_private: bool) -> Result<Box<dyn ClientDialogue>, String>;
}

/// A login that has begun.
pub trait ClientDialogue: Send {
    /// What is sent next, behind what the server has said: nothing yet the first time. May take milliseconds.
    ///
    /// # Errors
    /// What is wrong with what it has said.
    fn next(&mut self, said: Option<Bytes>) -> Result<LoginNext, String>;
}

/// How a login goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoginNext {
    /// The server is sent this: at most [`LOGIN_BYTES_MAX`] bytes.
    Send(Bytes),
    /// It is done.
    Done,
}

/// What to log in with at a server, and whether it has to be.
#[derive(Clone, Copy)]
pub struct LoginWish<'a> {
    /// By what.
    pub login: &'a dyn ServerLogin,
    /// A server that takes no logins, and lets in whoever connects as it does, is taken as well.
    pub or_without: bool,
}

/// Says HELLO, and logs in if that is wished: what the server answers, what was received behind that, and the
/// descriptors that came along.
pub(super) async fn come_in(
    env: &Env,
    stream: &Stream,
    wish: Option<LoginWish<'_>>,
) -> Result<(HelloReply, Decoder, Vec<OwnedFd>), Failure> {
    let hello = |out: &mut Vec<u8>| frame::encode_hello(out, 0);
    let Some(LoginWish { login, or_without }) = wish else {
        let greeted = say_hello(stream, hello).await?;
        return match greeted.0.login {
            true => Err(Failure::Login(None, "it wants a login, and was shown none".to_owned())),
            false => Ok(greeted),
        };
    };
    let greeted = say_hello(stream, |out| frame::encode_hello_to_log_in(out, 0)).await?;
    let (reply, mut decoder, mut files) = greeted;
    if !reply.login {
        return match or_without {
            true => Ok((reply, decoder, files)),
            false => Err(Failure::Login(
                None,
                "it takes no logins: it is of a version before them, or they are not for this listener"
                    .to_owned(),
            )),
        };
    }
    let is_private = !matches!(stream, Stream::Tcp(_));
    let mut dialogue = login.begin(env, is_private).map_err(|why| Failure::Login(None, why))?;
    let (mut said, mut request) = (None, 0);
    while let LoginNext::Send(message) =
        dialogue.next(said.take()).map_err(|why| Failure::Login(None, why))?
    {
        debug_assert!(message.len() <= LOGIN_BYTES_MAX, "the server takes no more");
        request += 1;
        let mut call = Vec::new();
        frame::encode_call(&mut call, request, LOGIN_METHOD, message.len());
        call.extend_from_slice(&message);
        let (header, body) = ask(stream, &call, &mut decoder, &mut files).await?;
        if header.kind != FrameKind::CallReply || header.request != request {
            return Err(Failure::Greeting("another frame came in a login".to_owned()));
        }
        said = match CallAnswer::parse(&header, body)? {
            CallAnswer::Done(answer) => Some(answer),
            CallAnswer::Refused(refusal) => {
                return Err(Failure::Login(Some(refusal.code), refusal.message));
            }
            CallAnswer::Overloaded => return Err(Failure::Io(std::io::ErrorKind::ResourceBusy.into())),
        };
    }
    let greeted = say_hello(stream, hello).await?;
    match greeted.0.login {
        true => Err(Failure::Greeting("it wants another login".to_owned())),
        false => Ok(greeted),
    }
}
