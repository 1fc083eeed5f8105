//! The context of a device, which is current on a thread while that thread calls the driver.

use std::ptr::null_mut;

use super::driver::{Context, Driver, Fault, Status};

/// Pointer of the driver; its functions may be called with it from any thread.
#[derive(Clone, Copy, Debug)]
pub(super) struct Handle<T>(pub(super) T);

// SAFETY: the driver's functions take its handles on any thread.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Handle<T> {}

/// A context that is current on the calling thread.
pub(super) struct Current<'a>(Option<&'a Driver>);

impl Current<'_> {
    /// Makes a context current on the calling thread.
    pub(super) fn enter(driver: &Driver, context: Context) -> Current<'_> {
        // SAFETY: the context is retained as long as its device.
        let status = unsafe { (driver.cuCtxPushCurrent_v2)(context) };
        // What follows a push that has failed says so itself.
        Current((status == 0).then_some(driver))
    }
}

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let Some(driver) = self.0 else { return };
        let mut context = null_mut();
        // SAFETY: there is a place for the context.
        unsafe { (driver.cuCtxPopCurrent_v2)(&mut context) };
    }
}

/// Returns the value that a function of the driver writes to a place.
pub(super) fn made<T>(
    driver: &Driver,
    start: T,
    make: impl FnOnce(&mut T) -> Status,
) -> Result<T, Fault> {
    let mut place = start;
    let status = make(&mut place);
    driver.check(status).map(|()| place)
}
