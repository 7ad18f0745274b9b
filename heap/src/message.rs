//! One line on standard error, without memory from anybody.
#![expect(unsafe_code)]
// UNSAFETY: names a descriptor by its number.

use core::fmt::Write;

/// A line being put together; what does not fit is cut.
pub(crate) struct Line {
    text: [u8; 256],
    len: usize,
}

impl Line {
    /// Empty.
    pub(crate) const fn new() -> Self {
        Line { text: [0; 256], len: 0 }
    }

    /// What stands in it.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.text[..self.len]
    }
}

impl Write for Line {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        // The last byte stays free for a newline, or the zero of a C string.
        let n = s.len().min(self.text.len() - 1 - self.len);
        self.text[self.len..self.len + n].copy_from_slice(&s.as_bytes()[..n]);
        self.len += n;
        Ok(())
    }
}

/// What a user wrote, as it is shown to him again: its beginning, without what a terminal would take for orders.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl core::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        const MOST: usize = 60;
        let mut left = MOST;
        for chunk in self.0.utf8_chunks() {
            let strange = (!chunk.invalid().is_empty()).then_some(char::REPLACEMENT_CHARACTER);
            for c in chunk.valid().chars().chain(strange).flat_map(char::escape_debug) {
                if left == 0 {
                    return f.write_str("…");
                }
                f.write_char(c)?;
                left -= 1;
            }
        }
        Ok(())
    }
}

/// Prints `rustmx heap: …`, in one write, so that lines of several ranks do not mix.
pub(crate) fn say(text: core::fmt::Arguments<'_>) {
    let mut line = Line::new();
    let _ = line.write_str("rustmx heap: ");
    let _ = line.write_fmt(text);
    line.text[line.len] = b'\n';
    // SAFETY: only written to; if it is closed, EBADF.
    let stderr = unsafe { rustix::fd::BorrowedFd::borrow_raw(2) };
    let _ = rustix::io::write(stderr, &line.text[..line.len + 1]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_user_wrote_is_a_short_line() {
        assert_eq!(format!("{}", Shown(b"RUSTMX_HEAP=\x1b[1m\n\xff")), "RUSTMX_HEAP=\\u{1b}[1m\\n\u{fffd}");
        assert_eq!(format!("{}", Shown(&[b'x'; 60])), "x".repeat(60));
        assert_eq!(format!("{}", Shown(&[b'\n'; 9999])), format!("{}…", "\\n".repeat(30)));
    }
}
