//! The key of an endpoint's job: what the application gives, or the environment, or a file that nobody else can read. What is wrong with
//! one is an error, never a reason to go on without.

use crate::config::Config;
use crate::config::echo::escaped;
use crate::config::network::{Secret, SecretFile};
use crate::error::Error;
use crate::log::Log;
use crate::sys::own_file;
use crate::transport::tcp::Guard;
use crate::wire::key::Key;
use std::path::Path;

/// Bytes of a key that a user gives. (Applications make keys of job numbers, too, which keep jobs apart and nobody out.)
const SHORTEST: usize = 16;
const LONGEST: usize = 4096;

/// What a configuration says of keys.
pub(super) struct Access {
    key: Secret,
    file: SecretFile,
    encrypt: bool,
    required: bool,
    log: Log,
}

impl Access {
    pub fn new(config: &Config, log: Log) -> Access {
        let (key, file) = (config.auth_key.clone(), config.auth_key_file.clone());
        Access { key, file, encrypt: config.encrypt != 0, required: config.require_key != 0 && config.tcp != 0, log }
    }

    /// What is asked of those who connect to an endpoint whose application gave `own`, if that is not empty.
    ///
    /// # Errors
    /// [`Error::Invalid`]: it would run with less protection than was asked for.
    pub fn guard(&self, own: &Secret) -> Result<Option<Guard>, Error> {
        let (encrypt, refuse) = (self.encrypt, |text: String| {
            self.log.insist(|| text);
            Err(Error::Invalid)
        });
        match self.find(own) {
            Ok(Some(key)) => Ok(Some(Guard { key, encrypt })),
            Err(why) => refuse(why),
            Ok(None) if encrypt => refuse(
                "FI_RUSTMX_ENCRYPT needs a key that all ranks share: set FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE, too"
                    .into(),
            ),
            Ok(None) if self.required => refuse(
                "FI_RUSTMX_REQUIRE_KEY is set here: set FI_RUSTMX_AUTH_KEY or FI_RUSTMX_AUTH_KEY_FILE for all ranks".into(),
            ),
            Ok(None) => Ok(None),
        }
    }

    fn find(&self, own: &Secret) -> Result<Option<Key>, String> {
        if !own.is_empty() {
            return Ok(Some(Key::new(own.reveal())));
        }
        match (self.key.is_empty(), self.file.path()) {
            (true, None) => Ok(None),
            (false, None) => from_user("FI_RUSTMX_AUTH_KEY", self.key.reveal()),
            (false, Some(_)) => Err("FI_RUSTMX_AUTH_KEY and FI_RUSTMX_AUTH_KEY_FILE are both set: set one of them".into()),
            (true, Some(path)) => {
                let whence = format!("FI_RUSTMX_AUTH_KEY_FILE={}", escaped(path));
                let text = own_file::read_secret(Path::new(path), LONGEST as u64).map_err(|why| format!("{whence}: {why}"))?;
                from_user(&whence, text.trim().as_bytes())
            }
        }
    }
}

fn from_user(whence: &str, bytes: &[u8]) -> Result<Option<Key>, String> {
    match bytes.len() {
        SHORTEST..=LONGEST => Ok(Some(Key::new(bytes))),
        n => Err(format!("{whence}: a key has {SHORTEST} to {LONGEST} bytes, not {n}; `openssl rand -hex 32` makes a good one")),
    }
}
