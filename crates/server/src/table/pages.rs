//! Pages of a shard's tables. They are in memory; beyond a memory limit, they are in a file.
//!
//! Reading or writing a row brings its page into memory, and SIEVE ([`thinwire_rows::Sieve`]) chooses the
//! page to evict. An evicted page is written to the file only if it has changed since it was read. Laws: a
//! read returns what was last written, whatever the limit; pages take at most the limit, or one page; once
//! the disk has failed, every call fails.

use std::borrow::Cow;
use std::path::PathBuf;

use thinwire_rows::{Policy, Sieve};

use thinwire_wire::checksum;

use super::page_file::PageFile;
use crate::error::{Error, Kind};

/// Memory limit of rows, and the folder for spilled rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Limit in bytes.
    pub bytes_max: u64,
    /// Folder of the file with the spilled rows.
    pub folder: PathBuf,
}

impl MemoryLimit {
    /// Checks that files can be created in the folder.
    ///
    /// # Errors
    /// [`Kind::Disk`] if files cannot be created.
    pub fn check(&self) -> Result<(), Error> {
        PageFile::create(&self.folder, 0).map(drop)
    }
}

/// Pages, by number.
#[derive(Debug, Default)]
pub struct Pages {
    pages: Vec<Page>,
    /// Bytes of pages in memory.
    bytes: usize,
    /// Bytes of pages that are only in the file.
    evicted_bytes: u64,
    spill: Option<Spill>,
    /// Reason why rows are lost, if they are.
    failure: Option<String>,
}

#[derive(Debug)]
enum Page {
    /// Zeros, since the page was never written.
    Unmade,
    /// In memory.
    Held {
        words: Box<[u32]>,
        /// Whether the page differs from the file.
        is_changed: bool,
    },
    /// In the file.
    Away {
        /// Checksum of the page.
        checksum: u32,
    },
}

#[derive(Debug)]
struct Spill {
    bytes_max: usize,
    /// Pages in memory, in the order of eviction.
    queue: Sieve,
    file: PageFile,
}

impl Pages {
    /// Creates `count` pages of zeros.
    pub fn new(count: usize) -> Pages {
        let pages = (0..count).map(|_| Page::Unmade).collect();
        Pages { pages, ..Pages::default() }
    }

    /// Returns the bytes that `count` pages take in memory even when they are in the file: the state of
    /// each page and its entry in the queue.
    pub fn least_bytes(count: u64) -> u64 {
        count * (size_of::<Page>() as u64 + 9) + 8
    }

    /// Returns the memory of the pages in bytes, including bookkeeping.
    pub fn bytes(&self) -> usize {
        self.fixed_bytes() + self.bytes
    }

    /// Returns the bytes of pages that are only in the file.
    pub fn evicted_bytes(&self) -> u64 {
        self.evicted_bytes
    }

    /// Returns whether there is a memory limit.
    pub fn is_limited(&self) -> bool {
        self.spill.is_some()
    }

    /// Sets the memory limit of all pages, of at most `page_bytes` bytes each. Pages beyond the limit are
    /// moved to a file in `limit.folder`.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn limit(&mut self, limit: &MemoryLimit, page_bytes: usize) -> Result<(), Error> {
        self.check()?;
        if self.spill.is_none() {
            let file = PageFile::create(&limit.folder, page_bytes);
            let file = self.noted(file)?;
            self.spill_to(file);
        }
        let room = usize::try_from(limit.bytes_max).unwrap_or(usize::MAX);
        let room = room.saturating_sub(self.fixed_bytes());
        self.spill.iter_mut().for_each(|spill| spill.bytes_max = room);
        let made = self.make_room(0);
        self.noted(made)
    }

    /// Returns a page of `words` words, bringing it into memory.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn read(&mut self, page: u32, words: usize) -> Result<&[u32], Error> {
        self.reserve(page, words).map(|(words, _)| &*words)
    }

    /// Returns a page of `words` words for writing, bringing it into memory.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn edit(&mut self, page: u32, words: usize) -> Result<&mut [u32], Error> {
        let (words, is_changed) = self.reserve(page, words)?;
        *is_changed = true;
        Ok(words)
    }

    /// Returns a page of `words` words without bringing it into memory.
    ///
    /// # Errors
    /// If the disk fails.
    pub fn peek(&self, page: u32, words: usize) -> Result<Cow<'_, [u32]>, Error> {
        self.check()?;
        if let Page::Held { words, .. } = &self.pages[page as usize] {
            return Ok(Cow::Borrowed(words));
        }
        let mut copy = vec![0; words];
        self.fetch(page, &mut copy)?;
        Ok(Cow::Owned(copy))
    }

    fn fixed_bytes(&self) -> usize {
        let queue = self.spill.as_ref().map_or(0, |spill| spill.queue.bytes());
        self.pages.capacity() * size_of::<Page>() + queue
    }

    fn spill_to(&mut self, file: PageFile) {
        let mut queue = Sieve::new(self.pages.len() as u32);
        let held = (0..).zip(&self.pages).filter(|(_, page)| matches!(page, Page::Held { .. }));
        held.for_each(|(page, _)| queue.put(page));
        self.spill = Some(Spill { bytes_max: usize::MAX, queue, file });
    }

    /// Brings a page into memory. Returns its words and the flag whether it differs from the file.
    fn reserve(&mut self, page: u32, words: usize) -> Result<(&mut [u32], &mut bool), Error> {
        self.check()?;
        match &self.pages[page as usize] {
            Page::Held { .. } => self.spill.iter_mut().for_each(|spill| spill.queue.hit(page)),
            Page::Unmade | Page::Away { .. } => {
                let brought = self.bring(page, words);
                self.noted(brought)?;
            }
        }
        let Page::Held { words, is_changed } = &mut self.pages[page as usize] else {
            unreachable!("it was brought into memory")
        };
        Ok((words, is_changed))
    }

    fn bring(&mut self, page: u32, words: usize) -> Result<(), Error> {
        self.make_room(4 * words)?;
        let mut content = vec![0; words].into_boxed_slice();
        self.fetch(page, &mut content)?;
        self.bytes += 4 * words;
        let place = &mut self.pages[page as usize];
        // The file has no zeros of a page that was never written.
        let is_changed = matches!(place, Page::Unmade);
        if !is_changed {
            self.evicted_bytes -= 4 * words as u64;
        }
        *place = Page::Held { words: content, is_changed };
        self.spill.iter_mut().for_each(|spill| spill.queue.put(page));
        Ok(())
    }

    /// Reads a page that is not in memory; zeros if it was never written.
    fn fetch(&self, page: u32, words: &mut [u32]) -> Result<(), Error> {
        let (Page::Away { checksum }, Some(spill)) = (&self.pages[page as usize], &self.spill)
        else {
            return Ok(());
        };
        spill.file.read(page, words)?;
        let found = sum(words);
        if found == *checksum {
            return Ok(());
        }
        let message = format!("rows on disk have checksum {found:08x}, expected {checksum:08x}");
        Err(Error::new(Kind::Disk, message))
    }

    /// Evicts pages until `bytes` more bytes fit, or no page is left.
    fn make_room(&mut self, bytes: usize) -> Result<(), Error> {
        while let Some(spill) = &mut self.spill
            && self.bytes.saturating_add(bytes) > spill.bytes_max
            && let Some(page) = spill.queue.evict()
        {
            let place = &mut self.pages[page as usize];
            let Page::Held { words, is_changed } = place else { continue };
            if *is_changed {
                spill.file.write(page, words)?;
            }
            self.bytes -= 4 * words.len();
            self.evicted_bytes += 4 * words.len() as u64;
            *place = Page::Away { checksum: sum(words) };
        }
        Ok(())
    }

    /// Returns an error if the disk has failed.
    ///
    /// # Errors
    /// If the disk has failed.
    pub fn check(&self) -> Result<(), Error> {
        match &self.failure {
            None => Ok(()),
            Some(text) => Err(Error::new(Kind::Disk, text.clone())),
        }
    }

    /// Stores the failure of a result, after which the content of pages is unknown.
    fn noted<T>(&mut self, result: Result<T, Error>) -> Result<T, Error> {
        result.inspect_err(|error| self.failure = Some(error.to_string()))
    }
}

fn sum(words: &[u32]) -> u32 {
    checksum(bytemuck::must_cast_slice(words))
}

#[cfg(test)]
impl Pages {
    /// Spills pages beyond `bytes_max` bytes to a file.
    pub fn spill_into(&mut self, file: PageFile, bytes_max: usize) {
        self.spill_to(file);
        self.bound(bytes_max);
    }

    /// Sets the limit on the bytes of pages.
    pub fn bound(&mut self, bytes_max: usize) {
        self.spill.iter_mut().for_each(|spill| spill.bytes_max = bytes_max);
    }

    /// Returns the file.
    pub fn file(&self) -> &PageFile {
        &self.spill.as_ref().unwrap().file
    }
}
