//! The object of `get`, `update` and `put`.

use leasehold::url::StoreUrl;
use leasehold::{ErrorKind, Object, Token};

use crate::args::ObjectArgs;
use crate::config::without_secrets;
use crate::exit::Failure;

/// An object given on the command line.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) object: Object,
    /// Its URL without secrets.
    pub(crate) shown: String,
}

impl Target {
    pub(crate) async fn open(args: &ObjectArgs) -> Result<Self, Failure> {
        let Some(url) = args.object.to_str() else {
            let shown = without_secrets(&args.object.to_string_lossy());
            return Err(Failure::usage(format!("the object's URL {shown:?} is not UTF-8")));
        };
        let shown = StoreUrl::parse(url).map_err(|_| {
            Failure::usage(format!("{:?} is not an object URL", without_secrets(url))).with_help(
                "an object URL is like s3://my-bucket/path/counter.json or dir:/srv/data/counter.json; --store is \
                 not used for objects",
            )
        })?;
        let object = Object::open(url).await.map_err(|error| match error.kind() {
            ErrorKind::Invalid | ErrorKind::Unsupported => Failure::bad_argument(error),
            _ => error.into(),
        })?;
        let object = match &args.content_type {
            Some(kind) => object.content_type(kind),
            None => object,
        };
        Ok(Self { object, shown: shown.to_string() })
    }
}

/// Parses a token given on the command line.
pub(crate) fn token(number: u64) -> Result<Token, Failure> {
    Token::try_from(number).map_err(Failure::bad_argument)
}
