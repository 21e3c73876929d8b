//! An object store as cold storage: S3 and what speaks its protocol, Google's, and Azure's, through the crate
//! `object_store`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use tailwater_env::Env;

use crate::http::ColdConnector;
use crate::objects::{ColdError, ColdObjects, FromCold};

/// How often a request is tried again: whoever wants something asks again, too.
const RETRIES: usize = 2;
/// For how long.
const RETRIED_FOR: Duration = Duration::from_secs(20);

/// See the module.
pub struct ObjectStoreObjects {
    store: Arc<dyn ObjectStore>,
    /// Before all names.
    prefix: Path,
    url: String,
}

impl std::fmt::Debug for ObjectStoreObjects {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ObjectStoreObjects").field(&self.url).finish()
    }
}

impl ObjectStoreObjects {
    /// What `url` names, with the `options` of its client; credentials and whatever else is in the environment, as the
    /// vendors' own programs have it. Asks nothing of it.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn open(env: &Env, url: &str, options: &BTreeMap<String, String>) -> Result<Self, String> {
        let told = |error: &dyn std::fmt::Display| error.to_string();
        let parsed = url.parse().map_err(|error: url::ParseError| told(&error))?;
        let (scheme, prefix) = ObjectStoreScheme::parse(&parsed).map_err(|error| told(&error))?;
        let connector = ColdConnector::open(env)?;
        let retry =
            RetryConfig { max_retries: RETRIES, retry_timeout: RETRIED_FOR, ..RetryConfig::default() };
        let store: Arc<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let mut builder = AmazonS3Builder::from_env().with_url(url);
                for (name, value) in options {
                    let key: AmazonS3ConfigKey = name.parse().map_err(|error| told(&error))?;
                    builder = builder.with_config(key, value);
                }
                let builder = builder.with_retry(retry).with_http_connector(connector);
                Arc::new(builder.build().map_err(|error| told(&error))?)
            }
            ObjectStoreScheme::GoogleCloudStorage => {
                let mut builder = GoogleCloudStorageBuilder::from_env().with_url(url);
                for (name, value) in options {
                    let key: GoogleConfigKey = name.parse().map_err(|error| told(&error))?;
                    builder = builder.with_config(key, value);
                }
                let builder = builder.with_retry(retry).with_http_connector(connector);
                Arc::new(builder.build().map_err(|error| told(&error))?)
            }
            ObjectStoreScheme::MicrosoftAzure => {
                let mut builder = MicrosoftAzureBuilder::from_env().with_url(url);
                for (name, value) in options {
                    let key: AzureConfigKey = name.parse().map_err(|error| told(&error))?;
                    builder = builder.with_config(key, value);
                }
                let builder = builder.with_retry(retry).with_http_connector(connector);
                Arc::new(builder.build().map_err(|error| told(&error))?)
            }
            _ => return Err("it is none of s3, gs and az".to_owned()),
        };
        Ok(Self { store, prefix, url: url.to_owned() })
    }

    fn path(&self, name: &str) -> Path {
        self.prefix.parts().chain(Path::from(name).parts()).collect()
    }
}

fn cold_error(name: &str, error: object_store::Error) -> ColdError {
    match error {
        object_store::Error::NotFound { .. } => ColdError::Missing(name.to_owned()),
        error => ColdError::Unavailable(format!("{name}: {error}")),
    }
}

impl ColdObjects for ObjectStoreObjects {
    fn put<'a>(&'a self, name: &'a str, bytes: Bytes) -> FromCold<'a, ()> {
        Box::pin(async move {
            let put = self.store.put(&self.path(name), bytes.into()).await;
            put.map(drop).map_err(|error| cold_error(name, error))
        })
    }

    fn read<'a>(&'a self, name: &'a str, from: u64, length: usize) -> FromCold<'a, Bytes> {
        Box::pin(async move {
            let range = from..from + length as u64;
            let read = self.store.get_range(&self.path(name), range).await;
            read.map_err(|error| cold_error(name, error))
        })
    }

    fn list<'a>(&'a self, folder: &'a str) -> FromCold<'a, Vec<String>> {
        Box::pin(async move {
            let listed = self.store.list_with_delimiter(Some(&self.path(folder))).await;
            let listed = listed.map_err(|error| cold_error(folder, error))?;
            let objects = listed.objects.iter().map(|object| &object.location);
            let names = listed.common_prefixes.iter().chain(objects).filter_map(Path::filename);
            Ok(names.map(str::to_owned).collect())
        })
    }

    fn remove<'a>(&'a self, folder: &'a str) -> FromCold<'a, ()> {
        Box::pin(async move {
            let listed = self.store.list(Some(&self.path(folder))).map_ok(|object| object.location);
            // What else removes them at the same time is no error.
            let there: Vec<Path> = listed.try_collect().await.map_err(|error| cold_error(folder, error))?;
            let paths = stream::iter(there.into_iter().map(Ok)).boxed();
            let removed: Result<Vec<Path>, _> = self
                .store
                .delete_stream(paths)
                .filter(|removed| {
                    std::future::ready(!matches!(removed, Err(object_store::Error::NotFound { .. })))
                })
                .try_collect()
                .await;
            removed.map(drop).map_err(|error| cold_error(folder, error))
        })
    }
}
