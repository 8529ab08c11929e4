//! Tokens of the text form.

use crate::error::IrError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// Keywords, type names, numbers, floats: `[A-Za-z0-9_.]`, and signs where a number has them.
    Word(&'a str),
    /// A quoted string, unescaped.
    Str(String),
    /// `%` and a word.
    Value(&'a str),
    /// `@` and a word.
    At(&'a str),
    /// `@` and a quoted string.
    AtStr(String),
    Punct(char),
    End,
}

impl Token<'_> {
    /// The token as an error message shows it.
    pub fn show(&self) -> String {
        let cut = |s: &str| {
            let mut short: String = s.chars().take(40).map(|c| if c.is_control() { ' ' } else { c }).collect();
            if s.chars().nth(40).is_some() {
                short.push_str("...");
            }
            short
        };
        match self {
            Token::Word(w) => format!("`{}`", cut(w)),
            Token::Str(s) => format!("\"{}\"", cut(s)),
            Token::Value(v) => format!("`%{}`", cut(v)),
            Token::At(a) => format!("`@{}`", cut(a)),
            Token::AtStr(s) => format!("@\"{}\"", cut(s)),
            Token::Punct(c) => format!("`{c}`"),
            Token::End => "the end of the text".into(),
        }
    }
}

/// Cuts a text into tokens.
pub(super) struct Lexer<'a> {
    text: &'a str,
    pos: usize,
}

/// The error at byte `at` of `text`; columns count characters, lines and columns from 1.
pub(super) fn error_at(text: &str, at: usize, expected: impl Into<String>, found: impl Into<String>) -> IrError {
    let before = text.get(..at).unwrap_or(text);
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    // The text is at most MAX_TEXT bytes, so that both counts fit.
    let line = before.bytes().filter(|b| *b == b'\n').count() as u32 + 1;
    let column = before[line_start..].chars().count() as u32 + 1;
    IrError::Parse { line, column, expected: expected.into(), found: found.into() }
}

fn is_word(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b == b'_' || b == b'.'
}

impl<'a> Lexer<'a> {
    pub fn new(text: &'a str) -> Self {
        Lexer { text, pos: 0 }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    fn skip(&mut self) {
        while let Some(b) = self.peek() {
            match b {
                b' ' | b'\t' | b'\r' | b'\n' => self.pos += 1,
                b'#' => self.pos += self.text[self.pos..].find('\n').unwrap_or(self.text.len() - self.pos),
                _ => break,
            }
        }
    }

    /// The next token and the byte where it starts.
    pub fn next(&mut self) -> Result<(Token<'a>, usize), IrError> {
        self.skip();
        let start = self.pos;
        let Some(b) = self.peek() else { return Ok((Token::End, start)) };
        let token = match b {
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b',' | b':' | b'=' => {
                self.pos += 1;
                Token::Punct(char::from(b))
            }
            b'"' => Token::Str(self.string()?),
            b'%' => {
                self.pos += 1;
                Token::Value(self.word())
            }
            b'@' => {
                self.pos += 1;
                if self.peek() == Some(b'"') { Token::AtStr(self.string()?) } else { Token::At(self.word()) }
            }
            b if is_word(b) || b == b'-' => Token::Word(self.word()),
            _ => {
                let found = self.text[start..].chars().next().map_or_else(String::new, |c| format!("{c:?}"));
                return Err(error_at(self.text, start, "a token of the text form", found));
            }
        };
        Ok((token, start))
    }

    /// A run of word characters; a sign belongs to it in front, and after the `e` of a decimal.
    fn word(&mut self) -> &'a str {
        let start = self.pos;
        if self.peek() == Some(b'-') {
            self.pos += 1;
        }
        let decimal = self.peek().is_some_and(|b| b.is_ascii_digit());
        while let Some(b) = self.peek() {
            let exponent =
                decimal && (b == b'-' || b == b'+') && matches!(self.text.as_bytes()[self.pos - 1], b'e' | b'E');
            if !is_word(b) && !exponent {
                break;
            }
            self.pos += 1;
        }
        &self.text[start..self.pos]
    }

    /// A string from its opening quote; it ends on its line.
    fn string(&mut self) -> Result<String, IrError> {
        self.pos += 1;
        let mut out = String::new();
        loop {
            let at = self.pos;
            let Some(c) = self.text[at..].chars().next().filter(|c| *c != '\n') else {
                return Err(error_at(self.text, at, "a closing `\"`", "the end of the line"));
            };
            self.pos += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => out.push(self.escape(at)?),
                _ => out.push(c),
            }
        }
    }

    fn escape(&mut self, at: usize) -> Result<char, IrError> {
        let rest = &self.text[self.pos..];
        let simple = match rest.bytes().next() {
            Some(b'"') => Some('"'),
            Some(b'\\') => Some('\\'),
            Some(b'n') => Some('\n'),
            Some(b'r') => Some('\r'),
            Some(b't') => Some('\t'),
            _ => None,
        };
        if let Some(c) = simple {
            self.pos += 1;
            return Ok(c);
        }
        let hex = rest.strip_prefix("u{").and_then(|r| r.split_once('}')).map(|(hex, _)| hex);
        let code = hex.filter(|h| !h.is_empty() && h.len() <= 6 && h.bytes().all(|b| b.is_ascii_hexdigit()));
        match code.and_then(|h| Some((h, char::from_u32(u32::from_str_radix(h, 16).ok()?)?))) {
            Some((h, c)) => {
                self.pos += "u{}".len() + h.len();
                Ok(c)
            }
            None => Err(error_at(self.text, at, "an escape \\\" \\\\ \\n \\r \\t \\u{hex}", "another escape")),
        }
    }
}
