//! An object store as cold storage: S3 and what speaks its protocol, Google's, and Azure's, through the crate
//! `object_store`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, BoxStream, StreamExt, TryStreamExt};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt, ObjectStoreScheme, RetryConfig};
use tailwater_env::Env;

use crate::http::ColdConnector;
use crate::objects::{ColdError, ColdObjects, FromCold};

/// How often a request is tried again: whoever wants something asks again, too.
const RETRIES: usize = 2;
/// For how long.
const RETRIED_FOR: Duration = Duration::from_secs(20);

/// An object as a store lists it.
#[derive(Clone, Debug)]
pub struct StoredObject {
    /// Its name below the URL.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    location: Path,
}

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

    /// All objects below the URL, at whatever depth, in the order in which the store lists them.
    pub fn all(&self) -> BoxStream<'static, Result<StoredObject, ColdError>> {
        let (prefix, url) = (self.prefix.clone(), self.url.clone());
        let named = self.store.list(Some(&self.prefix)).map(move |listed| {
            let ObjectMeta { location, size, .. } = listed.map_err(|error| cold_error(&url, error))?;
            let parts: Vec<_> = location.prefix_match(&prefix).into_iter().flatten().collect();
            let name = parts.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join("/");
            Ok(StoredObject { name, bytes: size, location })
        });
        named.boxed()
    }

    /// All of an object, as it is by now. `None` for what stands for a folder, as some programs put it: an empty object
    /// whose name ends with `/`.
    ///
    /// # Errors
    /// `Missing` if somebody has removed it meanwhile, `Unavailable`.
    pub async fn whole(&self, object: &StoredObject) -> Result<Option<Bytes>, ColdError> {
        let read = async { self.store.get(&object.location).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(object_store::Error::NotFound { .. }) if object.bytes == 0 => Ok(None),
            Err(error) => Err(cold_error(&object.name, error)),
        }
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

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn all_below_a_url_is_listed_by_its_name_there_and_read_whole() {
        futures::executor::block_on(list_and_read());
    }

    async fn list_and_read() {
        let store: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        for name in ["roads/north/a1", "roads/b", "roadside/c", "d", "roads/empty", "roads/50%25/x y"] {
            let bytes = if name.ends_with("empty") { Bytes::new() } else { format!("of {name}").into() };
            store.put(&Path::parse(name).expect("a name"), bytes.into()).await.expect("put");
        }
        let of = |prefix: &str| ObjectStoreObjects {
            store: Arc::clone(&store),
            prefix: Path::from(prefix),
            url: format!("memory://{prefix}"),
        };
        let objects = of("roads");
        let listed: Vec<StoredObject> = objects.all().try_collect().await.expect("listed");
        let names: Vec<&str> = listed.iter().map(|object| &*object.name).collect();
        assert_eq!(names, ["50%25/x y", "b", "empty", "north/a1"]);
        for object in &listed {
            let bytes = objects.whole(object).await.expect("read").expect("no folder");
            assert_eq!(bytes.len() as u64, object.bytes, "{}", object.name);
            assert!(bytes.is_empty() || bytes == format!("of roads/{}", object.name));
        }
        store.delete(&listed[1].location).await.expect("deleted");
        let missing = objects.whole(&listed[1]).await;
        assert_eq!(missing, Err(ColdError::Missing("b".to_owned())));
        // As a store lists what stands for a folder.
        let folder = StoredObject { bytes: 0, ..listed[1].clone() };
        assert_eq!(objects.whole(&folder).await, Ok(None));
        let all: Vec<StoredObject> = of("").all().try_collect().await.expect("listed");
        assert_eq!(all.len(), 5);
        assert_eq!(all[0].name, "d");
    }
}
