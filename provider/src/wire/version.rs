//! Which version of the protocol this is: of records, segments and hellos. Peers of different versions refuse each other.
//!
//! The library's file says it in plain text, so that one can ask it without a job:
//! ```sh
//! grep -ao 'rustmx protocol [0-9]*' librustmx_fi.so
//! ```
//! And what the file says is what the process goes by: a copy with another number in that text is one of another version, by which tests find out what jobs
//! of two versions are told (`mpi-tests/run.sh --versions`).

use core::hint::black_box;

/// The version.
pub const PROTOCOL: u32 = 18;

const WORDS: &[u8; 16] = b"rustmx protocol ";
const DIGITS: usize = 4;

#[used]
static STAMP: [u8; WORDS.len() + DIGITS] = stamp();

const fn stamp() -> [u8; WORDS.len() + DIGITS] {
    const { assert!(PROTOCOL < 10_000, "more digits are needed") };
    let (mut text, mut rest) = ([0; WORDS.len() + DIGITS], PROTOCOL);
    let mut at = text.len();
    while at > 0 {
        at -= 1;
        if at < WORDS.len() {
            text[at] = WORDS[at];
        } else {
            text[at] = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
    }
    text
}

/// The version that the library's file says.
pub fn protocol() -> u32 {
    // Not known when this is compiled.
    let digits = &black_box(&STAMP)[WORDS.len()..];
    digits.iter().fold(0, |number, digit| 10 * number + u32::from(digit.wrapping_sub(b'0')))
}

/// What to say of a peer that speaks another one.
pub fn differs(theirs: u32) -> String {
    let ours = protocol();
    format!(
        "it speaks version {theirs} of the protocol of rustmx, and this process version {ours}; install the same rustmx for all ranks, on all hosts"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_the_number() {
        assert_eq!(protocol(), PROTOCOL);
        assert_eq!(std::str::from_utf8(&STAMP), Ok(format!("rustmx protocol {PROTOCOL:04}").as_str()));
        assert!(differs(7).contains("version 7 ") && differs(7).contains(&format!("version {PROTOCOL};")));
    }
}
