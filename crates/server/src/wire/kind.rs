//! Kinds of messages, given by the first byte.

pub const FRAGMENT: u8 = 0;

pub const HELLO: u8 = 1;
pub const PUSH: u8 = 2;
pub const PULL: u8 = 3;

pub const PEER: u8 = 8;
pub const FORWARD: u8 = 9;
pub const HAVE: u8 = 10;
pub const SNAPSHOT: u8 = 11;
pub const SUPERSEDED: u8 = 12;

pub const WELCOME: u8 = 16;
pub const ACKNOWLEDGE: u8 = 17;
pub const ANSWER: u8 = 18;
pub const REFUSED: u8 = 19;
pub const MISFIT: u8 = 20;
pub const STRANGER: u8 = 21;
pub const DELAYED: u8 = 22;
