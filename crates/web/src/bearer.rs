//! Bearer tokens of requests.

use http::HeaderMap;
use http::header::AUTHORIZATION;

/// The token of a request that has one Authorization field, of the scheme Bearer (RFC 6750, section 2.1; RFC 9110, section 11.4). Which of
/// two is meant nobody knows: that is as none.
pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let mut fields = headers.get_all(AUTHORIZATION).iter();
    let (field, None) = (fields.next()?.as_bytes(), fields.next()) else { return None };
    let (scheme, token) = field.split_at_checked(b"bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn one_field_of_one_scheme() {
        let found = |fields: &[&str]| {
            let mut headers = HeaderMap::new();
            fields.iter().for_each(|field| {
                headers.append(AUTHORIZATION, HeaderValue::from_str(field).unwrap());
            });
            bearer(&headers).map(<[u8]>::to_vec)
        };
        for field in ["Bearer abc", "bearer abc ", "BEARER  abc"] {
            assert_eq!(found(&[field]), Some(b"abc".to_vec()), "{field}");
        }
        for fields in
            [&[][..], &["abc"], &["Basic abc"], &["Bearer"], &["Bearer:"], &["Bearer abc", "Bearer abc"]]
        {
            assert_eq!(found(fields), None, "{fields:?}");
        }
    }
}
