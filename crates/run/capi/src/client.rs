//! The connection to a node: from it come cells by their names, and consumers.

use std::ffi::c_char;

use futures::FutureExt;
use tailwater_client::{Client, ClientConfig, Dialer, DialerConfig, LoginConfig};
use tailwater_env::Env;

use crate::given::{handle, text, wanted_text};
use crate::limits::DEADLINE_MS_MAX;
use crate::notifier::TailwaterNotifier;
use crate::operation::{Brought, TailwaterOperation, start, take};
use crate::runtime::free;
use crate::status::{NotDone, transport};

/// A connection to a node. Opaque. All consumers of one read each record once.
pub struct TailwaterClient {
    pub(crate) client: Client,
}

/// How to connect. All zeros are the defaults, and so is a null pointer in place of it. A login is in the variables
/// TAILWATER_LOGIN, TAILWATER_LOGIN_PASSWORD, TAILWATER_LOGIN_TOKEN and their like with _FILE.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct TailwaterOptions {
    /// What the node's logs call this program. May be null.
    pub name: *const c_char,
    /// A PEM file with the CA of the servers' certificates: connections may be in TLS then. Null: they are not.
    pub ca_file: *const c_char,
    /// A PEM file with the certificate to show. May be null.
    pub certificate_file: *const c_char,
    /// A PEM file with its key. Null: it is in the certificate's file.
    pub key_file: *const c_char,
    /// Which way to the cells' memory: a number of TailwaterTransport. Cells that are opened by addresses go by those.
    pub transport: u32,
    /// The longest that an operation of a cell takes, in milliseconds. 0: half a second, or as the node says.
    pub deadline_ms: u32,
}

/// The same, checked.
pub(crate) struct OptionsGiven {
    pub(crate) config: ClientConfig,
    pub(crate) deadline_ms: u32,
}

/// Checks options. Reads the files that they name.
///
/// # Safety
/// `options` is null, or its texts are null or end with a 0.
pub(crate) unsafe fn options(env: &Env, options: *const TailwaterOptions) -> Result<OptionsGiven, NotDone> {
    let login = LoginConfig::of_environment().and_then(|login| login.open()).map_err(NotDone::invalid)?;
    // SAFETY: as this function's.
    let Some(given) = (unsafe { options.as_ref() }) else {
        let config = ClientConfig { login, ..ClientConfig::default() };
        return Ok(OptionsGiven { config, deadline_ms: 0 });
    };
    check_deadline(given.deadline_ms)?;
    // SAFETY: as this function's.
    let [name, ca, certificate, key] = unsafe {
        [
            text(given.name, "name")?,
            text(given.ca_file, "ca_file")?,
            text(given.certificate_file, "certificate_file")?,
            text(given.key_file, "key_file")?,
        ]
    };
    let [ca, certificate, key] = [ca, certificate, key].map(|file| file.map(Into::into));
    if ca.is_none() && certificate.is_some() {
        return Err(NotDone::invalid("certificate_file without ca_file: say whose certificates are good"));
    }
    let dialer = Dialer::open(env, &DialerConfig { ca, certificate, key, names: Vec::new() });
    let dialer = dialer.map_err(|error| NotDone::invalid(error.to_string()))?;
    let transport = transport(given.transport)?;
    let config =
        ClientConfig { name: name.unwrap_or_default(), transport, dialer, login, ..ClientConfig::default() };
    Ok(OptionsGiven { config, deadline_ms: given.deadline_ms })
}

/// Whether a deadline is one that is taken.
pub(crate) fn check_deadline(deadline_ms: u32) -> Result<(), NotDone> {
    if deadline_ms <= DEADLINE_MS_MAX {
        return Ok(());
    }
    Err(NotDone::invalid(format!("deadline_ms: {deadline_ms}, at most {DEADLINE_MS_MAX} are taken")))
}

/// Connects to the node at `address`: `IP:PORT`, `tcp:IP:PORT`, `tls:IP:PORT` or `unix:/path`, as its `[listen] data`
/// says. Gives up after five seconds. `tailwater_operation_client` takes what it brings.
///
/// # Safety
/// `address` ends with a 0, `options` is null or valid, `notifier` is null or not freed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_client_open(
    address: *const c_char,
    options: *const TailwaterOptions,
    notifier: *const TailwaterNotifier,
    tag: u64,
) -> *mut TailwaterOperation {
    // SAFETY: as this function's.
    unsafe {
        start(notifier, tag, |library| {
            let address = wanted_text(address, "address")?;
            let OptionsGiven { config, .. } = self::options(&library.env, options)?;
            let connecting = async move {
                let client = Client::connect_with(library.env.clone(), &address, config).await?;
                Ok(Brought::Client(client))
            };
            Ok(connecting.boxed())
        })
    }
}

/// Takes the client out of an operation that is done; null if there is none. The caller frees it.
///
/// # Safety
/// As `tailwater_operation_wait`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_operation_client(
    operation: *mut TailwaterOperation,
) -> *mut TailwaterClient {
    let pick = |brought| match brought {
        Brought::Client(client) => Ok(client),
        other => Err(other),
    };
    // SAFETY: as this function's.
    let taken = unsafe { take(operation, pick) };
    taken.map_or(std::ptr::null_mut(), |client| Box::into_raw(Box::new(TailwaterClient { client })))
}

/// Frees the client. Its consumers and cells go on. A null pointer is nothing.
///
/// # Safety
/// `client` is null, or was made by this library and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tailwater_client_free(client: *mut TailwaterClient) {
    // SAFETY: as this function's.
    unsafe { free(client) }
}

/// The client of a handle.
///
/// # Safety
/// `client` is null, or is not freed.
pub(crate) unsafe fn client_of(client: *const TailwaterClient) -> Result<Client, NotDone> {
    // SAFETY: as this function's.
    Ok(unsafe { handle(client, "client") }?.client.clone())
}
