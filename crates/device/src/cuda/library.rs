//! Libraries that are loaded at run time: `dlopen` and `dlsym`.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::io::Error;
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

#[cfg_attr(target_os = "linux", link(name = "dl"))]
unsafe extern "C" {
    fn dlopen(name: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dlerror() -> *const c_char;
}

/// Declares a table of a library's functions under their real names, and the function that fills it.
macro_rules! functions {
    (
        $(#[$doc:meta])*
        $visibility:vis struct $table:ident;
        $($name:ident: $type:ty;)*
    ) => {
        $(#[$doc])*
        #[allow(non_snake_case)]
        #[allow(missing_docs, reason = "the library's own documentation has them by these names")]
        #[derive(Clone, Copy, Debug)]
        $visibility struct $table {$($visibility $name: $type,)*}

        impl $table {
            #[allow(non_snake_case)]
            fn of(library: &$crate::cuda::library::Library) -> std::io::Result<$table> {
                $(
                    let symbol = library.symbol(stringify!($name))?;
                    // SAFETY: the library's function of this name has this type.
                    let $name = unsafe { std::mem::transmute::<*mut c_void, $type>(symbol.as_ptr()) };
                )*
                Ok($table { $($name,)* })
            }
        }
    };
}
pub(super) use functions;

/// Flag that resolves all symbols at once.
const NOW: c_int = 2;

/// Library that stays loaded until the process ends, since nothing shows when its last function
/// returns.
#[derive(Clone, Copy, Debug)]
pub struct Library(NonNull<c_void>);

// SAFETY: the loader's functions may be called from any thread.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library of a name or path.
    ///
    /// # Errors
    /// With the loader's message, if there is no such library or it cannot be loaded.
    pub fn open(name: impl AsRef<OsStr>) -> Result<Library, Error> {
        let name = CString::new(name.as_ref().as_bytes())?;
        // SAFETY: the name ends in a zero; initialisers of libraries of kernels and of CUDA are sound.
        let library = unsafe { dlopen(name.as_ptr(), NOW) };
        NonNull::new(library).map(Library).ok_or_else(message)
    }

    /// Returns the address of a function or variable.
    ///
    /// # Errors
    /// With the loader's message, if the library does not define this name.
    pub fn symbol(&self, name: &str) -> Result<NonNull<c_void>, Error> {
        let name = CString::new(name)?;
        // SAFETY: the library is loaded, and the name ends in a zero.
        let symbol = unsafe { dlsym(self.0.as_ptr(), name.as_ptr()) };
        NonNull::new(symbol).ok_or_else(message)
    }
}

fn message() -> Error {
    // SAFETY: `dlerror` returns null or a text that lasts until this thread's next call of the loader.
    let text = unsafe { dlerror().as_ref().map(|text| CStr::from_ptr(text)) };
    Error::other(text.map_or("unknown error".into(), CStr::to_string_lossy))
}
