//! Which file of measured costs a user wants: the value of `FI_RUSTMX_PROFILE`. Reading it is `select`'s.

use std::fmt;
use std::path::PathBuf;

/// The value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ProfileChoice {
    /// The user's own, if there is one.
    #[default]
    Own,
    /// None: the shipped table.
    Off,
    /// This one.
    File(PathBuf),
}

impl ProfileChoice {
    /// Reads the value. Any text that is not `off` is a path; there is nothing to complain about before it is opened.
    pub fn parse(text: &str) -> (ProfileChoice, Vec<String>) {
        let choice = match text.trim() {
            "" => ProfileChoice::Own,
            word if word.eq_ignore_ascii_case("off") => ProfileChoice::Off,
            path => ProfileChoice::File(path.into()),
        };
        (choice, Vec::new())
    }
}

/// As a user would write it.
impl fmt::Display for ProfileChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProfileChoice::Own => Ok(()),
            ProfileChoice::Off => f.write_str("off"),
            ProfileChoice::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_back() {
        for (text, choice) in
            [("", ProfileChoice::Own), ("off", ProfileChoice::Off), ("/a/B c", ProfileChoice::File("/a/B c".into()))]
        {
            assert_eq!(ProfileChoice::parse(text), (choice.clone(), Vec::new()));
            assert_eq!(choice.to_string(), text);
        }
        assert_eq!(ProfileChoice::parse(" OFF ").0, ProfileChoice::Off);
        assert_eq!(ProfileChoice::parse("./off").0, ProfileChoice::File("./off".into()));
    }
}
