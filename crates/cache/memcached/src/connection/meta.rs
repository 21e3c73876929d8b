//! The meta commands.

use bytes::Bytes;
use tailwater_cache::{CellValue, ItemExtras, Lookup, UpdateTo, Version};
use tokio::io::{AsyncRead, AsyncWrite};

use super::text::NOT_A_NUMBER;
use super::{Connection, NO_ROOM};
use crate::change::{ItemTag, KeyChange, KeyChanged, expires_ms, left_s};
use crate::front::ItemChanged;
use crate::request::{MetaFlags, MetaRequest, MetaVerb, RefusalLine, StoreVerb};

const BAD_MODE: RefusalLine = "CLIENT_ERROR invalid mode for ms M token";
const BAD_MODE_OF_MA: RefusalLine = "CLIENT_ERROR invalid mode for ma M token";

/// What is told of an item.
struct ItemShown<'a> {
    request: &'a MetaRequest,
    version: Option<Version>,
    extras: ItemExtras,
    size: usize,
    /// When it was last read before, if that is known.
    read_s: Option<u64>,
}

/// How a meta command ended that has no item to tell of.
enum MetaEnd {
    Line(&'static str),
    /// As the client was told that it would not be told of.
    Quiet,
    Refused(String),
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    pub(super) async fn meta(&mut self, request: MetaRequest) {
        self.front.stats.cmd_meta.add(1);
        let ended = match request.verb {
            MetaVerb::Get => self.meta_get(&request).await,
            MetaVerb::Set => self.meta_set(&request).await,
            MetaVerb::Delete => self.meta_delete(&request).await,
            MetaVerb::Arithmetic => self.meta_arithmetic(&request).await,
            MetaVerb::Debug => self.meta_debug(&request).await,
        };
        match ended {
            Ok(()) | Err(MetaEnd::Quiet) => {}
            Err(MetaEnd::Line(line)) => self.replies.line(line),
            Err(MetaEnd::Refused(why)) => self.refuse(&why),
        }
    }

    fn may_meta(&mut self, operation: &str) -> Result<(), MetaEnd> {
        // It is told by then.
        if self.may(operation) { Ok(()) } else { Err(MetaEnd::Quiet) }
    }

    async fn change_meta(&mut self, key: &Bytes, change: &KeyChange) -> Result<ItemChanged, MetaEnd> {
        self.change(key, change).await.map_err(MetaEnd::Refused)
    }

    /// The expiry in the token of a flag that is there.
    fn expiry(&self, flags: &MetaFlags, flag: u8) -> Result<Option<u64>, MetaEnd> {
        let exptime: Option<i64> = flags.number(flag).map_err(refused)?;
        Ok(exptime.map(|exptime| expires_ms(exptime, self.front.env.wall_ms())))
    }

    async fn meta_get(&mut self, request: &MetaRequest) -> Result<(), MetaEnd> {
        let flags = &request.flags;
        let (touch, vivify) = (self.expiry(flags, b'T')?, self.expiry(flags, b'N')?);
        let token = flags.number(b'E').map_err(refused)?.unwrap_or(0);
        let recache_s: Option<i64> = flags.number(b'R').map_err(refused)?;
        let now_ms = self.front.env.wall_ms();
        let before = |s: i64| u64::try_from(now_ms.saturating_add(s.saturating_mul(1_000))).unwrap_or(0);
        let recache_before_ms = recache_s.map(before);
        self.may_meta("get")?;
        let lookup = self.front.get(std::slice::from_ref(&request.key)).await.pop();
        let held = match lookup {
            Some(Lookup::Hit { version, value, extras }) => Some(CellValue { version, value, extras }),
            Some(Lookup::Miss) | None => None,
            Some(Lookup::Failed(why)) => return Err(MetaEnd::Refused(format!("SERVER_ERROR {why}"))),
        };
        let read_s = held.as_ref().and_then(|held| self.front.recent.last(held.version));
        let change = KeyChange::Fetch { touch, vivify, recache_before_ms, token };
        // Most gets change nothing, and are over when the item is read.
        let (held, changed) = match change.decide(held.as_ref()) {
            (UpdateTo::Keep, changed) => (held, changed),
            _ => {
                self.may_meta("set")?;
                let ItemChanged { changed, version, before, to } =
                    self.change_meta(&request.key, &change).await?;
                (after(before, version, to), changed)
            }
        };
        let KeyChanged::Fetched { is_new, is_won } = changed else {
            if !flags.has(b'q') {
                self.replies.put(b"EN");
                self.tell_whose(request);
                self.replies.put(b"\r\n");
            }
            return Ok(());
        };
        let Some(CellValue { version, value, extras }) = held else { return Err(MetaEnd::Line("EN")) };
        if flags.has(b'v') && !self.has_room(&value) {
            return Err(MetaEnd::Refused(NO_ROOM.to_owned()));
        }
        if !flags.has(b'u') {
            self.front.recent.note(version, self.now_s());
        }
        self.begin(flags, value.len());
        self.tell(&ItemShown { request, version: Some(version), extras, size: value.len(), read_s });
        let tag = ItemTag::from_tag(extras.tag);
        for (is_told, told) in
            [(tag.is_sent && !is_won && !is_new, b" Z"), (tag.is_stale, b" X"), (is_won, b" W")]
        {
            if is_told {
                self.replies.put(told);
            }
        }
        self.end(flags, &value);
        Ok(())
    }

    async fn meta_set(&mut self, request: &MetaRequest) -> Result<(), MetaEnd> {
        let flags = &request.flags;
        let verb = match flags.token(b'M').map(|mode| mode.to_ascii_uppercase()).as_deref() {
            None | Some(b"S") => StoreVerb::Set,
            Some(b"E") => StoreVerb::Add,
            Some(b"A") => StoreVerb::Append,
            Some(b"P") => StoreVerb::Prepend,
            Some(b"R") => StoreVerb::Replace,
            Some(_) => return Err(refused(BAD_MODE)),
        };
        let (expires_ms, vivify) = (self.expiry(flags, b'T')?.unwrap_or(0), self.expiry(flags, b'N')?);
        let client_flags = flags.number(b'F').map_err(refused)?.unwrap_or(0);
        let cas: Option<u64> = flags.number(b'C').map_err(refused)?;
        let token = flags.number(b'E').map_err(refused)?.unwrap_or(0);
        self.may_meta("set")?;
        let change = KeyChange::Store {
            verb,
            data: request.data.clone(),
            flags: client_flags,
            expires_ms,
            cas,
            may_be_stale: flags.has(b'I'),
            vivify,
            token,
        };
        let (changed, version) = self.stored(&request.key, change).await.map_err(MetaEnd::Refused)?;
        let extras = ItemExtras { expires_ms, tag: client_flags.into(), token };
        self.tell_changed(request, changed, version, extras)
    }

    async fn meta_delete(&mut self, request: &MetaRequest) -> Result<(), MetaEnd> {
        let flags = &request.flags;
        let cas: Option<u64> = flags.number(b'C').map_err(refused)?;
        let token = flags.number(b'E').map_err(refused)?.unwrap_or(0);
        let expires_ms = self.expiry(flags, b'T')?;
        self.may_meta("delete")?;
        let change = match flags.has(b'I') {
            true => KeyChange::Invalidate { cas, expires_ms, token },
            false => KeyChange::Delete { cas },
        };
        let changed = self.change(&request.key, &change).await;
        self.count_delete(&changed);
        let item = changed.map_err(MetaEnd::Refused)?;
        self.tell_changed(request, item.changed, item.version, ItemExtras::default())
    }

    async fn meta_arithmetic(&mut self, request: &MetaRequest) -> Result<(), MetaEnd> {
        let flags = &request.flags;
        let is_decr = match flags.token(b'M').map(|mode| mode.to_ascii_uppercase()).as_deref() {
            None | Some(b"I" | b"+") => false,
            Some(b"D" | b"-") => true,
            Some(_) => return Err(refused(BAD_MODE_OF_MA)),
        };
        let first = flags.number(b'J').map_err(refused)?.unwrap_or(0);
        let change = KeyChange::Arithmetic {
            delta: flags.number(b'D').map_err(refused)?.unwrap_or(1),
            is_decr,
            cas: flags.number(b'C').map_err(refused)?,
            expires_ms: self.expiry(flags, b'T')?,
            vivify: self.expiry(flags, b'N')?.map(|expires_ms| (first, expires_ms)),
            token: flags.number(b'E').map_err(refused)?.unwrap_or(0),
        };
        self.may_meta("set")?;
        let changed = self.change(&request.key, &change).await;
        self.count_arithmetic(&changed, is_decr);
        let ItemChanged { changed, version, before, to } = changed.map_err(MetaEnd::Refused)?;
        let Some(CellValue { value, extras, .. }) = after(before, version, to) else {
            return self.tell_changed(request, changed, version, ItemExtras::default());
        };
        if !matches!(changed, KeyChanged::Number(_)) {
            return self.tell_changed(request, changed, version, extras);
        }
        if flags.has(b'q') && !flags.has(b'v') {
            return Err(MetaEnd::Quiet);
        }
        self.begin(flags, value.len());
        self.tell(&ItemShown { request, version, extras, size: value.len(), read_s: None });
        self.end(flags, &value);
        Ok(())
    }

    async fn meta_debug(&mut self, request: &MetaRequest) -> Result<(), MetaEnd> {
        self.may_meta("get")?;
        match self.front.get(std::slice::from_ref(&request.key)).await.pop() {
            Some(Lookup::Hit { version, value, extras }) => {
                let exp = left_s(extras.expires_ms, self.front.env.wall_ms())
                    .map_or("-1".to_owned(), |left| left.to_string());
                let read_s = self.front.recent.last(version);
                let la = self.idle_s(version, read_s);
                let fetch = if read_s.is_some() { "yes" } else { "no" };
                self.replies.put(b"ME ");
                self.replies.put(&request.shown);
                let (cas, size) = (extras.token_at(version), value.len());
                self.replies.format(format_args!(
                    " exp={exp} la={la} cas={cas} fetch={fetch} cls=1 size={size} version={version}\r\n"
                ));
                Ok(())
            }
            Some(Lookup::Failed(why)) => Err(MetaEnd::Refused(format!("SERVER_ERROR {why}"))),
            Some(Lookup::Miss) | None => Err(MetaEnd::Line("EN")),
        }
    }

    /// Seconds since the value was read, or set if it was not.
    fn idle_s(&self, version: Version, read_s: Option<u64>) -> u64 {
        let since_s = read_s.unwrap_or(version.timestamp_us / 1_000_000);
        self.now_s().saturating_sub(since_s)
    }

    /// How a change ended, but for one that has a value to tell.
    fn tell_changed(
        &mut self,
        request: &MetaRequest,
        changed: KeyChanged,
        version: Option<Version>,
        extras: ItemExtras,
    ) -> Result<(), MetaEnd> {
        let is_quiet = request.flags.has(b'q');
        let code = match changed {
            KeyChanged::Stored | KeyChanged::Deleted | KeyChanged::Number(_) | KeyChanged::Fetched { .. } => {
                "HD"
            }
            KeyChanged::NotStored => "NS",
            KeyChanged::Exists => "EX",
            KeyChanged::NotFound => "NF",
            KeyChanged::NotANumber => return Err(refused(NOT_A_NUMBER)),
            KeyChanged::TooLarge => return Err(refused(crate::request::TOO_LARGE)),
        };
        if is_quiet && code == "HD" {
            return Err(MetaEnd::Quiet);
        }
        self.replies.put(code.as_bytes());
        if code != "HD" {
            self.tell_whose(request);
            self.replies.put(b"\r\n");
            return Ok(());
        }
        self.tell(&ItemShown { request, version, extras, size: request.data.len(), read_s: None });
        self.replies.put(b"\r\n");
        Ok(())
    }

    fn begin(&mut self, flags: &MetaFlags, size: usize) {
        match flags.has(b'v') {
            true => self.replies.format(format_args!("VA {size}")),
            false => self.replies.put(b"HD"),
        }
    }

    fn end(&mut self, flags: &MetaFlags, value: &Bytes) {
        self.replies.put(b"\r\n");
        if flags.has(b'v') {
            self.replies.value(value);
        }
    }

    /// Which request it was, where there is no item to tell of.
    fn tell_whose(&mut self, request: &MetaRequest) {
        for (flag, token) in request.flags.iter() {
            match flag {
                b'k' | b'O' => self.tell_flag(request, flag, token),
                b'c' => self.replies.put(b" c0"),
                _ => {}
            }
        }
    }

    fn tell_flag(&mut self, request: &MetaRequest, flag: u8, token: &[u8]) {
        match flag {
            b'k' => {
                self.replies.put(b" k");
                self.replies.put(&request.shown);
                if request.flags.has(b'b') {
                    self.replies.put(b" b");
                }
            }
            _ => {
                self.replies.put(b" O");
                self.replies.put(token);
            }
        }
    }

    /// What the flags ask for, in their order.
    fn tell(&mut self, item: &ItemShown<'_>) {
        let ItemShown { request, version, extras, size, read_s } = item;
        for (flag, token) in request.flags.iter() {
            match flag {
                b'c' => self
                    .replies
                    .format(format_args!(" c{}", version.map_or(0, |version| extras.token_at(version)))),
                b'f' => self.replies.format(format_args!(" f{}", ItemTag::from_tag(extras.tag).flags)),
                b'h' => self.replies.format(format_args!(" h{}", u8::from(read_s.is_some()))),
                b'l' => {
                    let idle_s = version.map_or(0, |version| self.idle_s(version, *read_s));
                    self.replies.format(format_args!(" l{idle_s}"));
                }
                b'k' | b'O' => self.tell_flag(request, flag, token),
                b's' => self.replies.format(format_args!(" s{size}")),
                b't' => match left_s(extras.expires_ms, self.front.env.wall_ms()) {
                    Some(left) => self.replies.format(format_args!(" t{left}")),
                    None => self.replies.put(b" t-1"),
                },
                _ => {}
            }
        }
    }
}

/// The item after a change.
fn after(before: Option<CellValue>, version: Option<Version>, to: UpdateTo) -> Option<CellValue> {
    match (to, version) {
        (UpdateTo::Set(value, extras), Some(version)) => Some(CellValue { version, value, extras }),
        _ => before,
    }
}

fn refused(why: RefusalLine) -> MetaEnd {
    MetaEnd::Refused(why.to_owned())
}
