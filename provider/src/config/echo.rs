//! What a user wrote, as it is shown to him again: a line of it at most, without what a terminal would take for orders.

/// Characters of a text that are shown.
const SHOWN: usize = 60;

/// Without control characters and what else has no form of its own: these as Rust writes them.
pub fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            // Written otherwise they would only be harder to find again.
            '\'' | '"' | '\\' => out.push(c),
            c => out.extend(c.escape_debug()),
        }
    }
    out
}

/// The same of its beginning, if it is long.
pub fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}… ({} bytes)", escaped(&text[..end]), text.len()),
        None => escaped(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_terminal_would_obey_is_written_out() {
        assert_eq!(shown("a \u{1b}[31mred\u{1b}[0m\nline\r"), "a \\u{1b}[31mred\\u{1b}[0m\\nline\\r");
        assert_eq!(shown("it's \"ß\" \\ ü"), "it's \"ß\" \\ ü");
        assert_eq!(shown(&"x".repeat(60)), "x".repeat(60));
        assert_eq!(shown(&"ß".repeat(50_000)), format!("{}… (100000 bytes)", "ß".repeat(60)));
    }

    proptest! {
        #[test]
        fn whatever_it_is_it_is_one_short_line(text in "\\PC*|.{0,300}|[\\x00-\\x20]{0,300}") {
            let shown = shown(&text);
            prop_assert!(!shown.chars().any(char::is_control) && shown.chars().count() < 60 * 10 + 30, "{shown:?}");
        }
    }
}
