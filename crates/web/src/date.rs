//! The `date` header, formatted once per second and thread.

use std::cell::RefCell;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use http::HeaderValue;
use rustix::time::{ClockId, clock_gettime};

thread_local! {
    static CURRENT: RefCell<(u64, HeaderValue)> = const { RefCell::new((u64::MAX, HeaderValue::from_static(""))) };
}

/// The value of a `date` header for now (RFC 9110, 6.6.1), one-second resolution.
pub fn date_header() -> HeaderValue {
    let now = u64::try_from(clock_gettime(ClockId::RealtimeCoarse).tv_sec).unwrap_or(0);
    CURRENT.with_borrow_mut(|(second, value)| {
        if *second != now {
            *value = http_date(now);
            *second = now;
        }
        value.clone()
    })
}

/// `seconds` since the epoch as an IMF-fixdate. Times beyond the year 9999, which the format cannot hold,
/// and times before 1970 are clamped.
pub(crate) fn http_date(seconds: u64) -> HeaderValue {
    const LAST: u64 = 253_402_300_799;
    let time = UNIX_EPOCH + Duration::from_secs(seconds.min(LAST));
    HeaderValue::from_maybe_shared(Bytes::from(httpdate::fmt_http_date(time)))
        .unwrap_or_else(|_| HeaderValue::from_static("Thu, 01 Jan 1970 00:00:00 GMT"))
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn formats_as_imf_fixdate() {
        assert_eq!(http_date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(http_date(u64::MAX), "Fri, 31 Dec 9999 23:59:59 GMT");
    }

    #[test]
    fn the_current_date_parses_as_now() {
        let parsed = httpdate::parse_http_date(date_header().to_str().unwrap()).unwrap();
        assert!(SystemTime::now().duration_since(parsed).unwrap() < Duration::from_secs(60));
    }
}
