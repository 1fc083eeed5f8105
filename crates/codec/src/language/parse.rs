//! Parser of texts of codecs, by recursive descent.
//!
//! One token of lookahead decides everything, so an error names the first token that does not fit.

use super::SOURCE_BYTES_MAX;
use super::refusal::{Refusal, nearest};
use super::syntax::{Definition, Expression, Header, Literal, Name, Node, Place, Statement};
use super::token::{Token, tokens};

/// Largest depth of an expression.
const DEPTH_MAX: usize = 64;

/// Largest number of values of a line, which bounds the depth of a tree.
const LINE_VALUES_MAX: usize = 128;

/// Largest number of values of a program, each of which is computed for every block.
const VALUES_MAX: usize = 512;

/// Operators between two values, by increasing precedence.
const LEVELS: [&[&str]; 5] =
    [&["or"], &["and"], &["<", "<=", ">", ">=", "==", "!="], &["+", "-"], &["*", "/"]];

const HEADERS: [&str; 8] =
    ["block", "param", "exchange", "feedback", "contraction", "variance", "encode", "decode"];

/// Words that are not names.
const RESERVED: [&str; 12] = [
    "codec", "block", "param", "exchange", "feedback", "encode", "decode", "emit", "take", "yield",
    "and", "or",
];

/// Parses a text.
///
/// # Errors
/// The first token that does not fit.
pub(crate) fn parse(source: &str) -> Result<Definition, Refusal> {
    if source.len() > SOURCE_BYTES_MAX {
        let message = format!("text of {} bytes, at most {SOURCE_BYTES_MAX}", source.len());
        return Err(Refusal::codec(message));
    }
    let tokens = tokens(source)?;
    let mut parser =
        Parser { tokens, at: 0, depth: 0, opened: Vec::new(), line_values: 0, values: 0 };
    let parsed = parser.definition();
    parsed.map_err(|refusal| unclosed(&parser, source).unwrap_or(refusal))
}

struct Parser {
    tokens: Vec<(Place, Token)>,
    at: usize,
    depth: usize,
    /// Tokens that open parentheses and brackets that are not closed yet.
    opened: Vec<usize>,
    /// Number of values of the line so far.
    line_values: usize,
    /// Number of values of all lines before.
    values: usize,
}

impl Parser {
    fn definition(&mut self) -> Result<Definition, Refusal> {
        self.word("codec")?;
        let name = self.name("the codec's name")?;
        self.line_end()?;
        let mut header = Vec::new();
        while !self.is_word("encode") {
            header.push(self.header()?);
        }
        self.word("encode")?;
        let input = self.name("a name for what is encoded")?;
        self.symbol(":")?;
        self.line_end()?;
        let encode = self.statements()?;
        self.word("decode")?;
        self.symbol(":")?;
        self.line_end()?;
        let decode = self.statements()?;
        match self.peek() {
            None => Ok(Definition { name, header, input, encode, decode }),
            Some(_) => Err(self.unexpected("a line of decode")),
        }
    }

    fn header(&mut self) -> Result<Header, Refusal> {
        let place = self.place();
        let Some(Token::Word(word)) = self.peek().cloned() else {
            return Err(self.unexpected("'encode' and what is encoded"));
        };
        self.at += 1;
        let header = match word.as_str() {
            "block" => Header::Block(self.expression()?),
            "param" => self.parameter()?,
            "exchange" => Header::Exchange(self.name("two_shot or gather")?),
            "feedback" => Header::Feedback,
            "contraction" => Header::Contraction(self.expression()?),
            "variance" => Header::Variance(self.expression()?),
            _ if self.is_symbol("=") => {
                self.at += 1;
                Header::Constant(checked(Name { text: word, place })?, self.expression()?)
            }
            _ => return Err(unknown_line(&word, place)),
        };
        self.line_end()?;
        Ok(header)
    }

    fn parameter(&mut self) -> Result<Header, Refusal> {
        self.count_value(self.place())?;
        let name = self.name("the parameter's name")?;
        self.symbol("=")?;
        let default = self.literal()?;
        let mut range = None;
        if self.is_word("in") {
            self.at += 1;
            let min = self.literal()?;
            self.symbol("..")?;
            range = Some((min.value, self.literal()?.value));
        }
        Ok(Header::Parameter { name, default, range })
    }

    fn statements(&mut self) -> Result<Vec<Statement>, Refusal> {
        let mut statements = Vec::new();
        while self.peek().is_some() && !self.is_word("decode") {
            statements.push(self.statement()?);
            self.line_end()?;
        }
        Ok(statements)
    }

    fn statement(&mut self) -> Result<Statement, Refusal> {
        let place = self.place();
        if self.is_word("emit") {
            self.at += 1;
            let wire = self.name("a type such as f32 or u1")?;
            return Ok(Statement::Emit { wire, value: self.expression()?, place });
        }
        if self.is_word("yield") {
            self.at += 1;
            return Ok(Statement::Yield { value: self.expression()?, place });
        }
        let name = self.name("a name, emit or yield")?;
        self.symbol("=")?;
        Ok(Statement::Let(name, self.expression()?))
    }

    fn expression(&mut self) -> Result<Expression, Refusal> {
        self.infix(0)
    }

    fn infix(&mut self, level: usize) -> Result<Expression, Refusal> {
        let Some(operators) = LEVELS.get(level) else { return self.prefix() };
        let mut left = self.infix(level + 1)?;
        while let Some(operator) = operators.iter().find(|operator| self.is(operator)) {
            let place = self.place();
            self.at += 1;
            let right = self.infix(level + 1)?;
            left = Expression { place, node: Node::Infix(operator, left.into(), right.into()) };
        }
        Ok(left)
    }

    fn prefix(&mut self) -> Result<Expression, Refusal> {
        let place = self.place();
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            let message = format!("nested {} deep, at most {DEPTH_MAX}", self.depth);
            return Err(Refusal::at(place, message).hint("give a part a name of its own"));
        }
        let expression = match ["-", "not"].into_iter().find(|operator| self.is(operator)) {
            Some(operator) => {
                self.at += 1;
                Expression { place, node: Node::Prefix(operator, self.prefix()?.into()) }
            }
            None => self.indexed()?,
        };
        self.depth -= 1;
        Ok(expression)
    }

    fn indexed(&mut self) -> Result<Expression, Refusal> {
        let mut value = self.primary()?;
        while self.is_symbol("[") {
            let place = self.place();
            self.open("[")?;
            let index = self.expression()?;
            self.close("]")?;
            value = Expression { place, node: Node::Index(value.into(), index.into()) };
        }
        Ok(value)
    }

    fn primary(&mut self) -> Result<Expression, Refusal> {
        let place = self.place();
        self.count_value(place)?;
        let node = match self.peek() {
            Some(Token::Number(_)) => Node::Number(self.literal()?),
            Some(Token::Symbol("(")) => {
                self.open("(")?;
                let inner = self.expression()?;
                self.close(")")?;
                return Ok(inner);
            }
            Some(Token::Word(word)) if word == "take" => {
                self.at += 1;
                Node::Take(self.name("a type such as f32 or u1")?)
            }
            // `block` is a header line and, in expressions, its number.
            Some(Token::Word(word)) if word == "block" => {
                self.at += 1;
                Node::Name("block".to_owned())
            }
            Some(Token::Word(_)) => {
                let name = self.name("a value")?.text;
                if self.is_symbol("(") {
                    Node::Call(name, self.arguments()?)
                } else {
                    Node::Name(name)
                }
            }
            _ => return Err(self.unexpected("a value")),
        };
        Ok(Expression { place, node })
    }

    fn arguments(&mut self) -> Result<Vec<Expression>, Refusal> {
        self.open("(")?;
        let mut arguments = Vec::new();
        while !self.is_symbol(")") {
            arguments.push(self.expression()?);
            if !self.is_symbol(")") {
                self.symbol(",")?;
            }
        }
        self.close(")")?;
        Ok(arguments)
    }

    fn literal(&mut self) -> Result<Literal, Refusal> {
        let negative = self.is_symbol("-");
        self.at += usize::from(negative);
        let Some(Token::Number(number)) = self.peek().cloned() else {
            return Err(self.unexpected("a number"));
        };
        self.at += 1;
        let value = if negative { -number.value } else { number.value };
        Ok(Literal { value, ..number })
    }

    fn name(&mut self, what: &str) -> Result<Name, Refusal> {
        let place = self.place();
        let Some(Token::Word(text)) = self.peek().cloned() else {
            return Err(self.unexpected(what));
        };
        self.at += 1;
        checked(Name { text, place })
    }

    fn word(&mut self, word: &str) -> Result<(), Refusal> {
        if self.is_word(word) { self.skip() } else { Err(self.unexpected(&format!("'{word}'"))) }
    }

    fn symbol(&mut self, symbol: &str) -> Result<(), Refusal> {
        if self.is_symbol(symbol) {
            self.skip()
        } else {
            Err(self.unexpected(&format!("'{symbol}'")))
        }
    }

    fn open(&mut self, symbol: &str) -> Result<(), Refusal> {
        self.opened.push(self.at);
        self.symbol(symbol)
    }

    fn close(&mut self, symbol: &str) -> Result<(), Refusal> {
        self.symbol(symbol)?;
        self.opened.pop();
        Ok(())
    }

    /// Counts one more value, of its line and of the program.
    fn count_value(&mut self, place: Place) -> Result<(), Refusal> {
        self.line_values += 1;
        let (line, all) = (self.line_values, self.values + self.line_values);
        if line > LINE_VALUES_MAX {
            let message = format!("{line} values in a line, at most {LINE_VALUES_MAX}");
            return Err(Refusal::at(place, message).hint("give a part a name of its own"));
        }
        if all > VALUES_MAX {
            let message = format!("{all} values in a program, at most {VALUES_MAX}");
            return Err(Refusal::at(place, message));
        }
        Ok(())
    }

    fn line_end(&mut self) -> Result<(), Refusal> {
        self.values += std::mem::take(&mut self.line_values);
        match self.peek() {
            None => Ok(()),
            Some(Token::LineEnd) => self.skip(),
            Some(_) => Err(self.unexpected("the end of the line")),
        }
    }

    fn skip(&mut self) -> Result<(), Refusal> {
        self.at += 1;
        Ok(())
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    fn is(&self, operator: &str) -> bool {
        self.is_symbol(operator) || self.is_word(operator)
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token::Word(found)) if found == word)
    }

    fn is_symbol(&self, symbol: &str) -> bool {
        matches!(self.peek(), Some(Token::Symbol(found)) if *found == symbol)
    }

    /// Returns the place of the next token, or of the last one at the end.
    fn place(&self) -> Place {
        let last = self.tokens.last().map_or(Place { line: 1, column: 1 }, |(place, _)| *place);
        self.tokens.get(self.at).map_or(last, |(place, _)| *place)
    }

    fn unexpected(&self, expected: &str) -> Refusal {
        let found = self.peek().map_or("the end of the file".to_owned(), Token::to_string);
        Refusal::at(self.place(), format!("found {found}, expected {expected}"))
    }
}

/// Returns the refusal of the innermost parenthesis or bracket that is not closed, at the end of the
/// line before the next statement: an expression continues until it is closed, so that the parser
/// notices only some lines later.
fn unclosed(parser: &Parser, source: &str) -> Option<Refusal> {
    let opened = parser.opened.iter().rev();
    let (open, end) = opened.map(|open| (*open, closed(parser, *open))).find_map(|found| {
        let (open, closed) = found;
        closed.err().map(|end| (open, end))
    })?;
    let (place, token) = &parser.tokens[open];
    let closing = if *token == Token::Symbol("(") { ")" } else { "]" };
    let line = parser.tokens[end - 1].0.line;
    let code = source.lines().nth(line - 1)?.split('#').next()?.trim_end();
    let message = format!(
        "expected '{closing}' here: {token} of line {}, column {} is not closed",
        place.line, place.column
    );
    Some(Refusal::at(Place { line, column: code.chars().count() + 1 }, message))
}

/// Returns the token that closes an opening one, or the beginning of the next statement as error.
fn closed(parser: &Parser, open: usize) -> Result<usize, usize> {
    let mut depth = 0_usize;
    for at in open..parser.tokens.len() {
        match parser.tokens[at].1 {
            _ if at > open && begins_statement(&parser.tokens[at - 1..]) => return Err(at),
            Token::Symbol("(" | "[") => depth += 1,
            Token::Symbol(")" | "]") => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(at);
        }
    }
    Err(parser.tokens.len())
}

/// Returns whether the second of some tokens begins a statement, and not a further line of an
/// expression.
fn begins_statement(tokens: &[(Place, Token)]) -> bool {
    let [(before, _), (place, Token::Word(word)), rest @ ..] = tokens else { return false };
    let named = matches!(rest.first(), Some((_, Token::Symbol("="))));
    let known = ["emit", "yield", "encode", "decode"].contains(&word.as_str())
        || HEADERS.contains(&word.as_str()) && word != "block";
    place.line > before.line && (named || known)
}

/// Checks that a name is not a word of the language.
fn checked(name: Name) -> Result<Name, Refusal> {
    if !RESERVED.contains(&name.text.as_str()) {
        return Ok(name);
    }
    let message = format!("'{}' is a word of the language, not a name", name.text);
    Err(Refusal::at(name.place, message))
}

fn unknown_line(word: &str, place: Place) -> Refusal {
    let refusal = Refusal::at(place, format!("no line begins with '{word}' here"));
    match nearest(word, HEADERS) {
        Some(known) => refusal.hint(format!("did you mean '{known}'?")),
        None => refusal.hint(
            "before encode: block, param, exchange, feedback, contraction, variance, NAME = VALUE",
        ),
    }
}
