//! Law of pictures and of arrays of images.

use std::io::Cursor;

use thinwire_train::images::{Form, arrays, decode};

/// Checks that any bytes are either read as images of the form that the model reads, or refused with an
/// error of one line. The first byte chooses whether they are read as a grey picture, a coloured one, or
/// an archive of arrays.
pub fn images(bytes: &[u8]) {
    let Some((choice, bytes)) = bytes.split_first() else { return };
    let found = match choice % 3 {
        2 => {
            let form = Form { shape: [1, 4, 4], classes: 10 };
            let found = arrays(Cursor::new(bytes), form);
            found.map(|images| assert_eq!(images.form(), form))
        }
        colours => {
            let shape = [1 + 2 * usize::from(colours), 4, 4];
            let elements: usize = shape.iter().product();
            decode(bytes, shape).map(|pixels| assert_eq!(pixels.len(), elements))
        }
    };
    if let Err(error) = found {
        assert!(!error.contains('\n'), "{error}");
    }
}
