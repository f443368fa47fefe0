//! Threads with a lower priority than those that move packets.

use std::io;

/// Sets the calling thread back by so many steps of niceness, which takes no privilege: where it shares a core with
/// threads of ordinary priority, it has the smaller part of it, a tenth with ten steps.
///
/// # Errors
/// What the kernel says, if it refuses; the thread stays as it is.
pub fn stand_back(steps: i32) -> io::Result<()> {
    // Of a thread, not of its process (setpriority(2), "C library/kernel differences"). 19 is the most.
    let nice = rustix::process::getpriority_process(None)?;
    rustix::process::setpriority_process(None, (nice + steps).min(19))?;
    Ok(())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_thread_stands_back_alone() {
        let nice = || rustix::process::getpriority_process(None).unwrap();
        let before = nice();
        let within = std::thread::spawn(move || {
            stand_back(3).unwrap();
            let set = nice();
            stand_back(100).unwrap();
            (set, nice())
        });
        assert_eq!((within.join().unwrap(), nice()), (((before + 3).min(19), 19), before));
    }
}
