//! The oracle itself: that it counts, counts the same each time, and tells a square from a line. A program without
//! libtest, whose other threads allocate too.

use std::panic::{AssertUnwindSafe, catch_unwind};

use expressway_fuzz::cost::{Account, Bound, Cost, hold};

/// Whether any two bytes are the same: a square.
fn has_double(data: &[u8]) -> bool {
    data.iter().enumerate().any(|(at, byte)| data[at + 1..].iter().any(|other| other == byte))
}

fn cost_of<T>(size: usize, action: impl FnOnce() -> T) -> Cost {
    let mut account = Account::default();
    account.run(size, action);
    account.cost()
}

fn main() {
    let data: Vec<u8> = (0..=255).collect();
    let first = cost_of(256, || has_double(&data));
    assert_eq!(first, cost_of(256, || has_double(&data)));
    assert!((256 * 255 / 2..256 * 256 * 4).contains(&first.steps), "{first:?}");
    assert_eq!((first.allocations, first.bytes, first.peak), (0, 0, 0));

    let made = cost_of(0, || (vec![0u8; 1000], drop(vec![0u8; 5000]), vec![0u8; 100]));
    assert_eq!((made.allocations, made.bytes, made.peak), (3, 6100, 6000));

    let bound = Bound { steps: (20, 1000), allocations: (0, 0), bytes: (0, 0), peak: (0, 0) };
    let refused = |size: usize| {
        catch_unwind(AssertUnwindSafe(|| hold(&bound, size, || has_double(&data[..size]))))
            .err()
            .map(|panic| panic.downcast::<String>().map_or_else(|_| "another panic".to_owned(), |text| *text))
    };
    assert_eq!(refused(16), None);
    let text = refused(256).expect("a square");
    assert!(
        text.starts_with("an input of 256 bytes cost ") && text.contains("20 a byte and 1000 are allowed"),
        "{text}"
    );

    // What one piece leaves behind counts towards the peak of the next.
    let mut account = Account::default();
    let kept = account.run(1, || vec![0u8; 4000]);
    let more = account.run(1, || vec![0u8; 300]);
    assert_eq!(account.cost().peak, 4300);
    drop((kept, more));
}
