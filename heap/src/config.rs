//! The environment variables of the heap.

/// What the environment says, and what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Config {
    /// `RUSTMX_HEAP`: whether there are arenas at all.
    pub(crate) on: bool,
    /// `RUSTMX_HEAP_RESERVE`: addresses of one arena, in bytes.
    pub(crate) reserve: usize,
    /// `RUSTMX_HEAP_MIN`: shortest block that lies in an arena, in bytes.
    pub(crate) min: usize,
}

/// What is in force if nothing is said.
pub(crate) const DEFAULT: Config = Config { on: true, reserve: 64 << 30, min: 8 << 10 };

/// What an arena's addresses may be.
const RESERVE: core::ops::RangeInclusive<usize> = 64 << 20..=1 << 40;
/// Below 4 KiB lie blocks of the C library that a forked child must not share (ADR 0013).
const MIN: core::ops::RangeInclusive<usize> = 4 << 10..=1 << 30;

/// Why a setting was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// No such name; it begins as ours do.
    Name,
    /// The value cannot be used.
    Value {
        /// What can.
        allowed: &'static str,
        /// What is used instead.
        default: &'static str,
    },
}

impl Config {
    /// Takes one `NAME=value` of the environment. What is not ours is passed over.
    pub(crate) fn set(&mut self, entry: &[u8]) -> Result<(), Wrong> {
        let Some(rest) = entry.strip_prefix(b"RUSTMX_HEAP") else { return Ok(()) };
        let Some(equals) = rest.iter().position(|b| *b == b'=') else { return Ok(()) };
        let (name, value) = (&rest[..equals], &rest[equals + 1..]);
        match name {
            // In capitals, too, as the provider's.
            b"" => match value {
                v if is_one_of(v, &[b"on", b"1", b"yes", b"true"]) => self.on = true,
                v if is_one_of(v, &[b"off", b"0", b"no", b"false"]) => self.on = false,
                _ => return Err(Wrong::Value { allowed: "on or off", default: "on" }),
            },
            b"_RESERVE" => match bytes(value) {
                Some(n) if RESERVE.contains(&n) => self.reserve = n,
                _ => return Err(Wrong::Value { allowed: "64m to 1024g", default: "64g" }),
            },
            b"_MIN" => match bytes(value) {
                Some(n) if MIN.contains(&n) => self.min = n,
                _ => return Err(Wrong::Value { allowed: "4k to 1024m", default: "8k" }),
            },
            _ => return Err(Wrong::Name),
        }
        Ok(())
    }
}

fn is_one_of(value: &[u8], words: &[&[u8]]) -> bool {
    words.iter().any(|word| value.eq_ignore_ascii_case(word))
}

/// A number of bytes; `k`, `m`, `g` (powers of 1024) may follow.
fn bytes(text: &[u8]) -> Option<usize> {
    let (digits, shift) = match text.split_last()? {
        (b'k' | b'K', rest) => (rest, 10),
        (b'm' | b'M', rest) => (rest, 20),
        (b'g' | b'G', rest) => (rest, 30),
        _ => (text, 0),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: usize = core::str::from_utf8(digits).ok()?.parse().ok()?;
    number.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let mut c = DEFAULT;
        for entry in ["RUSTMX_HEAP_RESERVE=1g", "RUSTMX_HEAP_MIN=4096", "PATH=/bin", "RUSTMX_HEA=1", "RUSTMX_HEAP_X"] {
            assert_eq!(c.set(entry.as_bytes()), Ok(()), "{entry}");
        }
        assert_eq!(c, Config { on: true, reserve: 1 << 30, min: 4096 });
        for (word, on) in [("off", false), ("ON", true), ("Off", false), ("Yes", true), ("FALSE", false)] {
            assert_eq!((c.set(format!("RUSTMX_HEAP={word}").as_bytes()), c.on), (Ok(()), on), "{word}");
        }
    }

    #[test]
    fn nonsense_changes_nothing() {
        let mut c = DEFAULT;
        for entry in ["RUSTMX_HEAP=maybe", "RUSTMX_HEAP="] {
            assert_eq!(c.set(entry.as_bytes()), Err(Wrong::Value { allowed: "on or off", default: "on" }));
        }
        for value in ["", "k", "-1g", "1", "63m", "1025g", "99999999999999999999", "18446744073709551615g", "1 g", "+1g"] {
            let entry = format!("RUSTMX_HEAP_RESERVE={value}");
            assert_eq!(c.set(entry.as_bytes()), Err(Wrong::Value { allowed: "64m to 1024g", default: "64g" }), "{value}");
        }
        assert_eq!(c.set(b"RUSTMX_HEAP_MIN=4095"), Err(Wrong::Value { allowed: "4k to 1024m", default: "8k" }));
        for entry in ["RUSTMX_HEAP_RESRVE=1g", "RUSTMX_HEAPS=1", "RUSTMX_HEAPMIN=8k"] {
            assert_eq!(c.set(entry.as_bytes()), Err(Wrong::Name), "{entry}");
        }
        assert_eq!(c, DEFAULT);
        // What is told to be the default is it.
        for (name, default) in [("", "on"), ("_RESERVE", "64g"), ("_MIN", "8k")] {
            assert_eq!(c.set(format!("RUSTMX_HEAP{name}={default}").as_bytes()), Ok(()));
        }
        assert_eq!(c, DEFAULT);
    }
}
