//! Maps files into memory, and reports a file whose pages are lost. No other module does either of
//! these.
//!
//! If a file becomes shorter, a page beyond its new end cannot be read: the system ends the process with
//! SIGBUS. Readers check before and after each batch that the file has not changed, which turns nearly
//! all such changes into an error. If a file changes between the checks, a process that has called
//! [`name_lost_pages`] ends with exit code 2 and a message that names the file.
#![allow(unsafe_code)]

use std::fs::{File, Metadata};
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::SystemTime;

use memmap2::Mmap;

use crate::error::Error;

/// Number of mapped files that can be named when their pages are gone.
const NAMED_MAX: usize = 64;
/// Exit code of a process that has lost pages.
const EXIT_CODE: i32 = 2;

static NAMED: [AtomicPtr<Named>; NAMED_MAX] =
    [const { AtomicPtr::new(ptr::null_mut()) }; NAMED_MAX];
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// File that is open, and can be mapped.
#[derive(Debug)]
pub(super) struct Opened {
    file: File,
    path: PathBuf,
    state: State,
}

/// Bytes of a mapped file.
#[derive(Debug)]
pub(crate) struct Map {
    bytes: Mmap,
    opened: Opened,
}

/// Properties of a file that change with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    length: u64,
    modified: Option<SystemTime>,
}

/// Message about a mapped file.
struct Named {
    addresses: Range<usize>,
    message: String,
}

impl Opened {
    /// Opens a file.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn new(path: &Path) -> io::Result<Opened> {
        let file = File::open(path)?;
        let state = State::of(&file.metadata()?);
        Ok(Opened { file, path: path.to_owned(), state })
    }

    /// Returns the length of the file in bytes.
    pub fn length(&self) -> u64 {
        self.state.length
    }

    /// Reads the first bytes; fewer than `N` are an error.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn read_start<const N: usize>(&self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Maps the whole file for reading.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn map(self) -> io::Result<Map> {
        // SAFETY: the bytes of a map must not change while a slice of it lives. Files of graphs are written
        // under another name and renamed when complete, and nothing in this crate opens one for writing again;
        // the documentation of `Store` asks the same of others. All readers index with bounds checks, so even
        // a file that somebody changes in place gives wrong numbers or a panic.
        let bytes = unsafe { Mmap::map(&self.file)? };
        let start = bytes.as_ptr().addr();
        let path = self.path.display();
        let message = format!("error: {path}: the file became shorter while it was read\n");
        let named = Named { addresses: start..start + bytes.len(), message };
        named.publish();
        Ok(Map { bytes, opened: self })
    }
}

impl Map {
    /// Checks that the file was not changed since it was opened.
    ///
    /// # Errors
    /// If the file was changed, or the system does not report it.
    pub fn ensure_unchanged(&self) -> Result<(), Error> {
        let Opened { file, path, state } = &self.opened;
        let found = file.metadata().map_err(|error| Error::io("cannot look at it", error));
        let error = match found.map(|found| State::of(&found)) {
            Ok(found) if found == *state => return Ok(()),
            Ok(found) if found.length != state.length => {
                let State { length, .. } = found;
                let expected = state.length;
                Error::changed(format!("{length} bytes, expected {expected} as it was opened"))
            }
            Ok(_) => Error::changed(
                "another program has written to the file since it was opened".to_owned(),
            ),
            Err(error) => error,
        };
        let hint = "write a new file and rename it to this name: programs that have opened the \
            old file can still read it";
        Err(error.of_file(path).with_hint(hint))
    }
}

impl Deref for Map {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        Named::withdraw(self.bytes.as_ptr().addr());
    }
}

impl State {
    fn of(metadata: &Metadata) -> State {
        State { length: metadata.len(), modified: metadata.modified().ok() }
    }
}

impl Named {
    /// Makes the file known to the handler. Files beyond the maximum number are not named.
    fn publish(self) {
        // Never freed, since the handler may be reading it; a process opens few files.
        let named: *mut Named = Box::leak(Box::new(self));
        let order = Ordering::AcqRel;
        let is_taken = |slot: &AtomicPtr<Named>| {
            slot.compare_exchange(ptr::null_mut(), named, order, Ordering::Relaxed).is_ok()
        };
        let _ = NAMED.iter().any(is_taken);
    }

    /// Removes the file that is mapped at an address.
    fn withdraw(start: usize) {
        for slot in &NAMED {
            let named = slot.load(Ordering::Acquire);
            // SAFETY: what a slot points to is never freed.
            if unsafe { named.as_ref() }.is_some_and(|named| named.addresses.start == start) {
                slot.store(ptr::null_mut(), Ordering::Release);
            }
        }
    }
}

/// Installs a handler of SIGBUS: if the process reads a lost page of a mapped graph, the handler ends it
/// with a message that names the file. Lost pages of other mappings are left to the previous handler.
///
/// # Panics
/// If the system refuses to set the signal handler, which it does only for invalid signals.
pub fn name_lost_pages() {
    BEFORE.get_or_init(|| {
        // SAFETY: zeros are a valid sigaction: no flags, an empty mask, the default action.
        let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_lost_page
            as extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void)
            as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both point to live structures; the handler only calls what a handler may call.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &action, &mut before) };
        assert_eq!(set, 0, "handler of SIGBUS");
        before
    });
}

/// Handler of SIGBUS. It allocates nothing, takes no lock, and calls only what POSIX allows in a handler.
extern "C" fn on_lost_page(
    _signal: libc::c_int,
    info: *mut libc::siginfo_t,
    _context: *mut libc::c_void,
) {
    // SAFETY: the system gives a valid siginfo_t to a handler with SA_SIGINFO.
    let (address, code) = unsafe { ((*info).si_addr().addr(), (*info).si_code) };
    for slot in &NAMED {
        // SAFETY: what a slot points to is never freed.
        let named = unsafe { slot.load(Ordering::Acquire).as_ref() };
        if let Some(Named { message, .. }) =
            named.filter(|named| named.addresses.contains(&address))
        {
            // SAFETY: the message is alive and of this length; both functions may be called in a handler.
            unsafe {
                libc::write(libc::STDERR_FILENO, message.as_ptr().cast(), message.len());
                libc::_exit(EXIT_CODE);
            }
        }
    }
    let default = libc::SIGBUS;
    // The instruction that failed is tried again when this function returns, now under the handler before.
    // SAFETY: a null pointer stands for a structure that is not wanted; `raise` may be called in a handler.
    unsafe {
        let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
        if before.is_null() {
            libc::signal(default, libc::SIG_DFL);
        } else {
            libc::sigaction(default, before, ptr::null_mut());
        }
        // A signal that another process has sent does not come again.
        if code <= 0 {
            libc::raise(default);
        }
    }
}
