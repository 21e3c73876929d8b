//! `[cold]`: where completed segments are copied to, and how.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tailwater_cold::limits::PART_BYTES;
use tailwater_cold::{ColdDirectory, ColdObjects};
use tailwater_env::Env;
use tailwater_log::ColdConfig;

/// Object stores that a URL may name.
const SCHEMES: [&str; 5] = ["s3", "s3a", "gs", "az", "abfs"];

/// What a build without clients of object stores says to whoever wants one.
#[cfg(not(feature = "cold"))]
const NO_OBJECT_STORES: &str = "names an object store, but this build has no client of any: `make dist` makes \
    target/dist/tailwater, which has them, as has one of `cargo build --release -p tailwater --features cold`; or use a \
    directory, file:///DIR";

/// Where completed segments are copied to. Without a URL they are copied nowhere.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ColdSection {
    /// `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or `az://CONTAINER/PREFIX`; empty for none.
    pub url: String,
    /// How long the copy of a segment is kept that retention or a truncation removed, in milliseconds.
    pub kept_ms: u64,
    /// Bytes per second that copying moves, to cold storage and back; 0 is no bound.
    pub bytes_per_s: u64,
    /// How often it is looked for copies that no record names, in milliseconds.
    pub sweep_ms: u64,
    /// What the object store's client is told besides, such as `aws_endpoint` and `aws_region`. Credentials are in the
    /// environment.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub options: BTreeMap<String, String>,
}

impl Default for ColdSection {
    fn default() -> Self {
        Self {
            url: String::new(),
            kept_ms: 24 * 3_600 * 1_000,
            bytes_per_s: 32 << 20,
            sweep_ms: 3_600 * 1_000,
            options: BTreeMap::new(),
        }
    }
}

impl ColdSection {
    /// Whether it can be used.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        anyhow::ensure!(
            (1_000..=1 << 50).contains(&self.sweep_ms),
            "[cold] sweep_ms = {} is not between 1000 and {}",
            self.sweep_ms,
            1_u64 << 50
        );
        anyhow::ensure!(
            self.kept_ms <= 1 << 50,
            "[cold] kept_ms = {} is more than {}",
            self.kept_ms,
            1_u64 << 50
        );
        let secret = self.options.keys().find(|name| is_secret(name));
        anyhow::ensure!(
            secret.is_none(),
            "[cold.options] has {}: credentials are not read from this file; put them into the environment of the node, as \
             in AWS_SECRET_ACCESS_KEY",
            secret.map_or("", String::as_str)
        );
        if self.url.is_empty() || self.directory().is_some() {
            return Ok(());
        }
        let scheme = self.url.split_once("://").map(|(scheme, _)| scheme);
        anyhow::ensure!(
            scheme.is_some_and(|scheme| SCHEMES.contains(&scheme)),
            "[cold] url = {:?} is no place for copies: use file:///DIR, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX or \
             az://CONTAINER/PREFIX",
            self.url
        );
        self.check_built()
    }

    /// Whether this build has clients of object stores.
    #[cfg(feature = "cold")]
    fn check_built(&self) -> anyhow::Result<()> {
        Ok(())
    }

    #[cfg(not(feature = "cold"))]
    fn check_built(&self) -> anyhow::Result<()> {
        anyhow::bail!("[cold] url = {:?} {NO_OBJECT_STORES}", self.url)
    }

    fn directory(&self) -> Option<&Path> {
        let path = self.url.strip_prefix("file://")?;
        path.starts_with('/').then(|| Path::new(path))
    }

    /// What the log is opened with, if there is a URL.
    ///
    /// # Errors
    /// As [`ColdSection::check`]; what is wrong with the object store's options.
    pub(super) fn opening(&self, env: &Env) -> anyhow::Result<Option<ColdConfig>> {
        self.check()?;
        if self.url.is_empty() {
            return Ok(None);
        }
        let objects: Arc<dyn ColdObjects> = match self.directory() {
            Some(dir) => Arc::new(ColdDirectory::new(env, dir)),
            None => self.object_store(env)?,
        };
        Ok(Some(ColdConfig {
            objects,
            kept: Duration::from_millis(self.kept_ms),
            bytes_per_s: self.bytes_per_s,
            part_bytes: PART_BYTES as u32,
            look_every: Duration::from_secs(1),
            sweep_every: Duration::from_millis(self.sweep_ms),
        }))
    }

    #[cfg(feature = "cold")]
    fn object_store(&self, env: &Env) -> anyhow::Result<Arc<dyn ColdObjects>> {
        let opened = tailwater_cold::ObjectStoreObjects::open(env, &self.url, &self.options);
        Ok(Arc::new(opened.map_err(|why| anyhow::anyhow!("[cold] url = {:?}: {why}", self.url))?))
    }

    #[cfg(not(feature = "cold"))]
    fn object_store(&self, _: &Env) -> anyhow::Result<Arc<dyn ColdObjects>> {
        anyhow::bail!("[cold] url = {:?} {NO_OBJECT_STORES}", self.url)
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase();
    ["secret", "key", "token", "password", "credential"].iter().any(|word| name.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(url: &str) -> ColdSection {
        ColdSection { url: url.to_owned(), ..ColdSection::default() }
    }

    #[test]
    fn copies_go_to_a_directory_or_where_a_url_says() {
        of("").check().expect("none");
        of("file:///var/cold").check().expect("a directory");
        for wrong in ["/var/cold", "file://var/cold", "s4://bucket", "http://host/x", "nowhere"] {
            let error = of(wrong).check().expect_err("refused").to_string();
            assert!(error.contains(wrong) && error.contains("file:///DIR"), "{error}");
        }
        let named = of("s3://bucket/prefix").check();
        if cfg!(feature = "cold") {
            named.expect("a place");
        } else {
            assert!(named.expect_err("refused").to_string().contains("make dist"));
        }
    }

    #[test]
    fn credentials_in_the_file_are_refused_by_name() {
        let options = BTreeMap::from([("aws_secret_access_key".to_owned(), "s3cr3t".to_owned())]);
        let error = ColdSection { options, ..of("") }.check().expect_err("refused").to_string();
        assert!(error.contains("aws_secret_access_key") && !error.contains("s3cr3t"), "{error}");
    }
}
